/* Crop and scale planes of decoded pictures, and turn YCbCr into RGB.

   The rule, which `scale.py` states once more in NumPy and tests hold both to: a triangle filter
   as wide as the step between output pixels (two pixels at least), taps outside the picture left
   out and the others weighted up; horizontally with weights of 7 bits, vertically of 15.
   All weights are integers made of integers, so every machine gives the same bytes.

   Plain C without Python's headers; called through ctypes, which lets other threads run. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2 1
#endif

#define TAPS 4   /* enough for steps of up to 2 pixels */
#define GROUP 8  /* output pixels that one shuffle fetches */
#define RING 8   /* scaled lines kept: TAPS, and one ahead, in a power of two */

typedef struct {
    int32_t at[TAPS];
    int16_t weight[TAPS];
} Tap;

typedef struct { /* of eight output pixels: where to load 16 bytes, which to take, their weights */
    int32_t base[2];
    uint8_t take[2][2 * GROUP];
    int8_t weight[2][2 * GROUP];
} Group;

typedef struct { /* one axis or two; lies in memory of the caller */
    int32_t width, height, out_width, out_height, readable;
    int32_t groups; /* that shuffles can fetch */
    int32_t pairs;  /* of taps that have weight: 1 or 2 */
} Header;

int64_t matinee_plan_bytes(int32_t out_width, int32_t out_height)
{
    return (int64_t)sizeof(Header) + ((int64_t)out_width + out_height) * (int64_t)sizeof(Tap)
        + ((int64_t)out_width / GROUP + 1) * (int64_t)sizeof(Group)
        + (int64_t)RING * out_width * (int64_t)sizeof(int16_t) + 64;
}

/* Taps of `count` output pixels over `length` input pixels; weights add up to `one`. */
static void plan_axis(int64_t length, int64_t count, int64_t one, Tap *taps)
{
    const int64_t reach = 2 * (length > count ? length : count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t place = (2 * i + 1) * length - count; /* in units of 1 / (2 * count) pixels */
        int64_t raw[TAPS] = {0, 0, 0, 0}, sum = 0, rest = one;
        int64_t first = (place - reach) / (2 * count);
        int used = 0, largest = 0;
        if (first < 0)
            first = 0;
        for (int64_t j = first; j < length && used < TAPS; j++) {
            int64_t away = 2 * count * j - place;
            if (away < 0)
                away = -away;
            if (away >= reach) {
                if (used)
                    break;
                continue;
            }
            taps[i].at[used] = (int32_t)j;
            raw[used] = reach - away;
            sum += raw[used++];
        }
        for (int k = 0; k < used; k++) {
            raw[k] = (2 * one * raw[k] + sum) / (2 * sum);
            rest -= raw[k];
            if (raw[k] > raw[largest])
                largest = k;
        }
        raw[largest] += rest;
        if (raw[largest] == one) { /* it does not fit its type, two halves do */
            taps[i].at[0] = taps[i].at[1] = taps[i].at[largest];
            raw[0] = raw[1] = one / 2;
            for (used = 2; used < TAPS; used++)
                raw[used] = 0;
            used = 2;
        }
        for (int k = 0; k < TAPS; k++) {
            if (k >= used && k)
                taps[i].at[k] = taps[i].at[k - 1];
            taps[i].weight[k] = (int16_t)raw[k];
        }
    }
}

static Tap *columns_of(void *plan) { return (Tap *)((char *)plan + sizeof(Header)); }
static Tap *rows_of(void *plan) { return columns_of(plan) + ((Header *)plan)->out_width; }
static Group *groups_of(void *plan) { return (Group *)(rows_of(plan) + ((Header *)plan)->out_height); }

/* Plan a crop of width x height, scaled to out_width x out_height. `readable` bytes of each line
   may be read from the crop's first pixel on. 0: planned; 1: more than 2 pixels a step. */
int32_t matinee_plan(void *plan, int32_t width, int32_t height, int32_t readable,
                     int32_t out_width, int32_t out_height)
{
    Header *header = plan;
    if (width < 1 || height < 1 || out_width < 1 || out_height < 1 || readable < width
        || width > 2 * out_width || height > 2 * out_height || width > 1 << 20 || height > 1 << 20
        || out_width > 1 << 20 || out_height > 1 << 20)
        return 1;
    *header = (Header){width, height, out_width, out_height, readable, 0, 1};
    plan_axis(width, out_width, 128, columns_of(plan));
    plan_axis(height, out_height, 32768, rows_of(plan));
    for (int32_t i = 0; i < out_width; i++)
        if (columns_of(plan)[i].weight[2])
            header->pairs = 2;
    if (readable < 16)
        return 0; /* no room for a load of 16 bytes: pixel by pixel */
    header->groups = out_width / GROUP;
    for (int32_t g = 0; g < header->groups; g++) {
        Group *group = groups_of(plan) + g;
        const Tap *taps = columns_of(plan) + (int64_t)g * GROUP;
        int32_t low[2], high[2];
        for (int pair = 0; pair < 2; pair++) {
            low[pair] = high[pair] = taps[0].at[2 * pair];
            for (int i = 0; i < GROUP; i++)
                for (int k = 2 * pair; k < 2 * pair + 2; k++) {
                    low[pair] = taps[i].at[k] < low[pair] ? taps[i].at[k] : low[pair];
                    high[pair] = taps[i].at[k] > high[pair] ? taps[i].at[k] : high[pair];
                }
        }
        if (high[1] - low[0] <= 15 && low[0] <= low[1]) /* one load for both */
            low[1] = low[0];
        for (int pair = 0; pair < 2; pair++) {
            if (low[pair] > readable - 16)
                low[pair] = readable - 16;
            if (high[pair] - low[pair] > 15) { /* cannot be fetched by one load */
                header->groups = g;
                return 0;
            }
            group->base[pair] = low[pair];
            for (int i = 0; i < GROUP; i++)
                for (int k = 0; k < 2; k++) {
                    group->take[pair][2 * i + k] = (uint8_t)(taps[i].at[2 * pair + k] - low[pair]);
                    group->weight[pair][2 * i + k] = (int8_t)taps[i].weight[2 * pair + k];
                }
        }
    }
    return 0;
}

static void line_plain(const uint8_t *source, const Tap *taps, int32_t from, int32_t to,
                       int16_t *out)
{
    for (int32_t i = from; i < to; i++) {
        int32_t sum = 0;
        for (int k = 0; k < TAPS; k++)
            sum += source[taps[i].at[k]] * taps[i].weight[k];
        out[i] = (int16_t)sum;
    }
}

static void rows_plain(const int16_t *const rows[TAPS], const int16_t *weight, int32_t from,
                       int32_t width, uint8_t *out)
{
    for (int32_t i = from; i < width; i++) {
        int32_t sum = 64;
        for (int k = 0; k < TAPS; k++)
            sum += (((rows[k][i] * weight[k]) >> 14) + 1) >> 1;
        sum >>= 7;
        out[i] = (uint8_t)(sum > 255 ? 255 : sum);
    }
}

#ifdef HAS_AVX2
__attribute__((target("avx2"))) static inline __m256i load_both(const uint8_t *first,
                                                                const uint8_t *second, int32_t at)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(first + at))),
        _mm_loadu_si128((const __m128i *)(second + at)), 1);
}

__attribute__((target("avx2"))) static inline __m256i weigh(__m256i bytes, const Group *group,
                                                            int pair)
{
    const __m128i take = _mm_loadu_si128((const __m128i *)group->take[pair]);
    const __m128i weight = _mm_loadu_si128((const __m128i *)group->weight[pair]);
    bytes = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(take));
    return _mm256_maddubs_epi16(bytes, _mm256_broadcastsi128_si256(weight));
}

/* Two lines at a time, one in each half of the registers: they share shuffles and weights. */
__attribute__((target("avx2"))) static int32_t lines_avx2(const uint8_t *first,
                                                          const uint8_t *second,
                                                          const Group *groups,
                                                          const Header *header, int16_t *out_first,
                                                          int16_t *out_second)
{
    for (int32_t g = 0; g < header->groups; g++) {
        const Group *group = groups + g;
        __m256i bytes = load_both(first, second, group->base[0]);
        __m256i sum = weigh(bytes, group, 0);
        if (header->pairs == 2) {
            if (group->base[1] != group->base[0])
                bytes = load_both(first, second, group->base[1]);
            sum = _mm256_add_epi16(sum, weigh(bytes, group, 1));
        }
        _mm_storeu_si128((__m128i *)(out_first + GROUP * g), _mm256_castsi256_si128(sum));
        _mm_storeu_si128((__m128i *)(out_second + GROUP * g), _mm256_extracti128_si256(sum, 1));
    }
    return header->groups * GROUP;
}

__attribute__((target("avx2"))) static int32_t rows_avx2(const int16_t *const rows[TAPS],
                                                         const int16_t *weight, int32_t width,
                                                         uint8_t *out)
{
    const __m256i w0 = _mm256_set1_epi16(weight[0]), w1 = _mm256_set1_epi16(weight[1]);
    const __m256i w2 = _mm256_set1_epi16(weight[2]), w3 = _mm256_set1_epi16(weight[3]);
    const __m256i half = _mm256_set1_epi16(64);
    const int two = weight[2] == 0 && weight[3] == 0;
    int32_t i = 0;
    for (; i + 16 <= width; i += 16) {
        __m256i sum = _mm256_add_epi16(
            _mm256_mulhrs_epi16(_mm256_loadu_si256((const __m256i *)(rows[0] + i)), w0),
            _mm256_mulhrs_epi16(_mm256_loadu_si256((const __m256i *)(rows[1] + i)), w1));
        if (!two) {
            sum = _mm256_add_epi16(sum, _mm256_mulhrs_epi16(
                _mm256_loadu_si256((const __m256i *)(rows[2] + i)), w2));
            sum = _mm256_add_epi16(sum, _mm256_mulhrs_epi16(
                _mm256_loadu_si256((const __m256i *)(rows[3] + i)), w3));
        }
        sum = _mm256_srai_epi16(_mm256_add_epi16(sum, half), 7);
        sum = _mm256_packus_epi16(sum, sum);
        _mm_storeu_si128((__m128i *)(out + i),
                         _mm256_castsi256_si128(_mm256_permute4x64_epi64(sum, 0xd8)));
    }
    return i;
}
#endif

/* Scale one plane by its plan into out_width * out_height bytes. `fast` allows AVX2. */
static void scale(void *plan, const uint8_t *source, int64_t stride, uint8_t *out, int32_t fast)
{
    const Header *header = plan;
    const Tap *columns = columns_of(plan), *lines = rows_of(plan);
    const int32_t width = header->out_width;
    int16_t *ring = (int16_t *)(groups_of(plan) + header->out_width / GROUP + 1);
    int32_t ready = 0; /* lines below this one are, or were, in the ring */
#ifdef HAS_AVX2
    fast = fast && __builtin_cpu_supports("avx2");
#else
    fast = 0;
#endif
    if (width == header->width && header->out_height == header->height) {
        for (int32_t y = 0; y < header->height; y++)
            memcpy(out + (int64_t)y * width, source + y * stride, (size_t)width);
        return;
    }
    for (int32_t y = 0; y < header->out_height; y++) {
        const Tap *tap = lines + y;
        const int16_t *rows[TAPS];
        if (ready < tap->at[0])
            ready = tap->at[0];
        for (int k = 0; k < TAPS; k++) {
            while (ready <= tap->at[k]) {
                const int32_t next = ready + 1 < header->height ? ready + 1 : ready;
                const uint8_t *first = source + ready * stride, *second = source + next * stride;
                int16_t *line = ring + (int64_t)(ready % RING) * width;
                int16_t *following = ring + (int64_t)(next % RING) * width;
                int32_t done = 0;
#ifdef HAS_AVX2
                if (fast)
                    done = lines_avx2(first, second, groups_of(plan), header, line, following);
#endif
                line_plain(first, columns, done, width, line);
                if (next != ready)
                    line_plain(second, columns, done, width, following);
                ready = next + 1;
            }
            rows[k] = ring + (int64_t)(tap->at[k] % RING) * width;
        }
        int32_t done = 0;
#ifdef HAS_AVX2
        if (fast)
            done = rows_avx2(rows, tap->weight, width, out + (int64_t)y * width);
#endif
        rows_plain(rows, tap->weight, done, width, out + (int64_t)y * width);
    }
}

static void rgb_plain(const uint8_t *luma, const uint8_t *cb, const uint8_t *cr, int64_t from,
                      int64_t pixels, const int32_t *map, uint8_t *out)
{
    for (int64_t i = from; i < pixels; i++) {
        const int32_t y = luma[i], b = cb[i], r = cr[i];
        for (int c = 0; c < 3; c++) {
            const int32_t *row = map + 4 * c;
            const int32_t value = (row[0] * y + row[1] * b + row[2] * r + row[3]) >> 13;
            out[3 * i + c] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
}

#ifdef HAS_AVX2
/* Eight pixels of one colour as 16-bit numbers; `yb` holds Y and Cb in turn, `r` Cr and 0. */
__attribute__((target("avx2"))) static inline __m128i color_of(__m256i yb, __m256i r,
                                                               const int32_t *row)
{
    const __m256i first = _mm256_set1_epi32((int32_t)((uint32_t)(row[0] & 0xffff)
                                                      | (uint32_t)row[1] << 16));
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(yb, first),
                                   _mm256_madd_epi16(r, _mm256_set1_epi32(row[2] & 0xffff)));
    sum = _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(row[3])), 13);
    return _mm_packs_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
}

__attribute__((target("avx2"))) static int64_t rgb_avx2(const uint8_t *luma, const uint8_t *cb,
                                                        const uint8_t *cr, int64_t pixels,
                                                        const int32_t *map, uint8_t *out)
{
    uint8_t order[3][3][16]; /* [16 bytes of the output][colour][which pixel, 128: another colour] */
    int64_t i = 0;
    for (int at = 0; at < 48; at++)
        for (int c = 0; c < 3; c++)
            order[at / 16][c][at % 16] = (uint8_t)(at % 3 == c ? at / 3 : 128);
    for (; i + 16 <= pixels; i += 16) {
        __m128i colors[3], halves[3][2];
        for (int half = 0; half < 2; half++) {
            const int64_t at = i + 8 * half;
            const __m128i y = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(luma + at)));
            const __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(cb + at)));
            const __m256i r = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(cr + at)));
            const __m256i yb = _mm256_set_m128i(_mm_unpackhi_epi16(y, b), _mm_unpacklo_epi16(y, b));
            for (int c = 0; c < 3; c++)
                halves[c][half] = color_of(yb, r, map + 4 * c);
        }
        for (int c = 0; c < 3; c++)
            colors[c] = _mm_packus_epi16(halves[c][0], halves[c][1]);
        for (int part = 0; part < 3; part++) {
            __m128i bytes = _mm_setzero_si128();
            for (int c = 0; c < 3; c++)
                bytes = _mm_or_si128(bytes, _mm_shuffle_epi8(
                    colors[c], _mm_loadu_si128((const __m128i *)order[part][c])));
            _mm_storeu_si128((__m128i *)(out + 3 * i + 16 * part), bytes);
        }
    }
    return i;
}
#endif

/* A frame in I420: the luma plane by one plan, both chroma planes by another. */
void matinee_i420(void *luma, void *chroma, const uint8_t *y, const uint8_t *cb, const uint8_t *cr,
                  int64_t stride, int64_t half_stride, uint8_t *out, int32_t fast)
{
    const Header *whole = luma, *half = chroma;
    const int64_t pixels = (int64_t)whole->out_width * whole->out_height;
    scale(luma, y, stride, out, fast);
    scale(chroma, cb, half_stride, out + pixels, fast);
    scale(chroma, cr, half_stride, out + pixels + (int64_t)half->out_width * half->out_height, fast);
}

/* A frame in interleaved RGB: all planes are scaled to one size (into `planes`), then
   R = (map[0] Y + map[1] Cb + map[2] Cr + map[3]) >> 13, held to 0 ... 255, and so on.
   `map` has 3 rows of 4 numbers, the first three of a row of 16 bits. */
void matinee_rgb(void *luma, void *chroma, const uint8_t *y, const uint8_t *cb, const uint8_t *cr,
                 int64_t stride, int64_t half_stride, uint8_t *planes, const int32_t *map,
                 uint8_t *out, int32_t fast)
{
    const Header *whole = luma;
    const int64_t pixels = (int64_t)whole->out_width * whole->out_height;
    int64_t done = 0;
    scale(luma, y, stride, planes, fast);
    scale(chroma, cb, half_stride, planes + pixels, fast);
    scale(chroma, cr, half_stride, planes + 2 * pixels, fast);
#ifdef HAS_AVX2
    if (fast && __builtin_cpu_supports("avx2"))
        done = rgb_avx2(planes, planes + pixels, planes + 2 * pixels, pixels, map, out);
#endif
    rgb_plain(planes, planes + pixels, planes + 2 * pixels, done, pixels, map, out);
}
