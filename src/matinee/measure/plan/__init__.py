"""What a run will take: memory, time, machines, money."""
