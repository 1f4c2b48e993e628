/* JSON as hostile text: what is skipped is checked all the same, what is taken is narrower than JSON. */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__) && !defined(TRACE_SCAN_PORTABLE)
#include <emmintrin.h>
#define HAS_SSE2 1
#endif

#define MAX_DEPTH 60  /* bits of the word that remembers what is open */
#define MAX_NUMBER 40 /* characters of a number nothing is computed from */
#define MAX_DIGITS 18 /* of an integer; more may not fit an int64 */
#define MAX_MICROSECONDS ((((int64_t)1 << 62) - 1) / 1000 - 1)

typedef struct { const uint8_t *text; size_t length; } Span;
typedef struct { const uint8_t *at, *end; } Text;

static uint64_t load64(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static void skip_space(Text *in)
{
    const uint8_t *at = in->at;
    while (at < in->end && *at <= ' ') {
        if (*at != ' ' && *at != '\n' && *at != '\t' && *at != '\r')
            break;
#ifdef HAS_SSE2
        if (*at == '\n' && in->end - at > 16) { /* what is indented */
            __m128i text = _mm_loadu_si128((const __m128i *)(at + 1));
            unsigned others = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(text, _mm_set1_epi8(' ')));
            at += __builtin_ctz(others | 1u << 16);
        }
#endif
        at++;
    }
    in->at = at;
}

static bool take(Text *in, uint8_t wanted)
{
    if (in->at >= in->end || *in->at != wanted)
        return false;
    in->at++;
    return true;
}

/* The next character that is no space, 0 at the end. */
static inline uint8_t next(Text *in)
{
    if (in->at < in->end && *in->at > ' ')
        return *in->at;
    skip_space(in);
    return in->at < in->end ? *in->at : 0;
}

/* From here to the next character of a string that is a quote, an escape, a control or no ASCII. */
static inline const uint8_t *plain_until(const uint8_t *at, const uint8_t *end)
{
#ifdef HAS_SSE2
    const __m128i quote = _mm_set1_epi8('"'), escape = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    for (; end - at >= 16; at += 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)at);
        __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(text, quote), _mm_cmpeq_epi8(text, escape));
        int mask = _mm_movemask_epi8(_mm_or_si128(ends, _mm_cmplt_epi8(text, space))); /* signed: 128.. too */
        if (mask)
            return at + __builtin_ctz((unsigned)mask);
    }
#else
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    for (; end - at >= 8; at += 8) {
        uint64_t text = load64(at), quote = text ^ (ones * '"'), escape = text ^ (ones * '\\');
        if ((((quote - ones) & ~quote) | ((escape - ones) & ~escape) | (text - ones * ' ') | text) & tops)
            break;
    }
#endif
    while (at < end && *at != '"' && *at != '\\' && *at >= ' ' && *at < 0x80)
        at++;
    return at;
}

/* Bytes of the UTF-8 sequence that begins here with a byte above 127; 0 where it is none. */
static size_t utf8_length(const uint8_t *at, const uint8_t *end)
{
    uint8_t first = *at, low = 0x80, high = 0xBF;
    size_t length = first >= 0xC2 && first <= 0xDF ? 2 : first >= 0xE0 && first <= 0xEF ? 3
                  : first >= 0xF0 && first <= 0xF4 ? 4 : 0;
    if (!length || (size_t)(end - at) < length)
        return 0;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    for (size_t i = 1; i < length; i++, low = 0x80, high = 0xBF)
        if (at[i] < low || at[i] > high)
            return 0;
    return length;
}

/* Bytes of the escape that begins here; 0 where it is none, or half of a pair of surrogates. */
static size_t escape_length(const uint8_t *at, const uint8_t *end)
{
    unsigned value = 0;
    if (end - at < 2)
        return 0;
    if (at[1] != 'u')
        return at[1] && strchr("\"\\/bfnrt", at[1]) ? 2 : 0;
    if (end - at < 6)
        return 0;
    for (int i = 2; i < 6; i++) {
        unsigned digit = at[i];
        unsigned nibble = digit >= '0' && digit <= '9' ? digit - '0'
                        : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                        : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : 16;
        if (nibble > 15)
            return 0;
        value = value * 16 + nibble;
    }
    return value >= 0xD800 && value <= 0xDFFF ? 0 : 6;
}

/* As `take_string`, whatever is in it; `at` is where its first odd character may be. */
static bool take_odd_string(Text *in, const uint8_t *at, Span *span, bool *escaped)
{
    const uint8_t *begin = in->at;
    *escaped = false;
    for (;;) {
        size_t length;
        at = plain_until(at, in->end);
        if (at >= in->end || *at < ' ')
            return false;
        if (*at == '"')
            break;
        if (*at == '\\') {
            *escaped = true;
            length = escape_length(at, in->end);
        } else {
            length = utf8_length(at, in->end);
        }
        if (!length)
            return false;
        at += length;
    }
    *span = (Span){begin, (size_t)(at - begin)};
    in->at = at + 1;
    return true;
}

/* What is between the quotes of the string that begins here, as it stands. */
static inline bool take_string(Text *in, Span *span, bool *escaped)
{
    if (!take(in, '"'))
        return false;
    const uint8_t *at = plain_until(in->at, in->end);
    if (at >= in->end || *at != '"')
        return take_odd_string(in, at, span, escaped);
    *escaped = false;
    *span = (Span){in->at, (size_t)(at - in->at)};
    in->at = at + 1;
    return true;
}

static bool is_digit(const Text *in) { return in->at < in->end && *in->at >= '0' && *in->at <= '9'; }

/* A number whose value is not needed; such as could be too large for a float64 are refused. */
static bool skip_number(Text *in)
{
    const uint8_t *begin = in->at;
    take(in, '-');
    if (!is_digit(in))
        return false;
    if (*in->at == '0')
        in->at++;
    else
        while (is_digit(in))
            in->at++;
    if (is_digit(in))
        return false;
    if (take(in, '.')) {
        if (!is_digit(in))
            return false;
        while (is_digit(in))
            in->at++;
    }
    if (in->at < in->end && (*in->at | 32) == 'e') {
        in->at++;
        if (!take(in, '-'))
            take(in, '+');
        const uint8_t *exponent = in->at;
        while (is_digit(in))
            in->at++;
        if (in->at == exponent || in->at - exponent > 2)
            return false;
    }
    return in->at - begin <= MAX_NUMBER;
}

static bool skip_word(Text *in, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(in->end - in->at) < length || memcmp(in->at, word, length))
        return false;
    in->at += length;
    return true;
}

/* Any value, checked and passed over. `open` holds a bit a level: 1 in an object, 0 in a list. */
static bool skip_value(Text *in)
{
    uint64_t open = 0;
    int depth = 0;
    Span span;
    bool escaped;
    for (;;) {
        uint8_t first = next(in);
        bool opened = false;
        if (first == '"') {
            if (!take_string(in, &span, &escaped))
                return false;
        } else if (first == '{' || first == '[') {
            if (depth == MAX_DEPTH)
                return false;
            in->at++;
            depth++;
            open = open << 1 | (first == '{');
            opened = true;
        } else if (first == '-' || (first >= '0' && first <= '9')) {
            if (!skip_number(in))
                return false;
        } else if (!(first == 't' ? skip_word(in, "true")
                     : first == 'f' ? skip_word(in, "false")
                     : first == 'n' && skip_word(in, "null"))) {
            return false;
        }
        /* Behind a value, or right behind what opened one: what closes here, then a comma. */
        for (;; opened = false) {
            if (!depth)
                return true;
            uint8_t follows = next(in);
            if (follows == (open & 1 ? '}' : ']')) {
                in->at++;
                depth--;
                open >>= 1;
                continue;
            }
            if (opened)
                break;
            if (follows != ',')
                return false;
            in->at++;
            break;
        }
        if (open & 1) {
            if (next(in) != '"' || !take_string(in, &span, &escaped) || next(in) != ':')
                return false;
            in->at++;
        }
    }
}

/* The digits of a number before its point: at most MAX_DIGITS, and no zero in front of others. */
static bool take_digits(Text *in, int64_t *value)
{
    const uint8_t *begin = in->at;
    int64_t sum = 0;
    for (; is_digit(in); in->at++) {
        if (in->at - begin == MAX_DIGITS)
            return false;
        sum = sum * 10 + (*in->at - '0');
    }
    *value = sum;
    return in->at != begin && !(*begin == '0' && in->at - begin > 1);
}

/* A key of an object, and the colon behind it. */
static bool take_key(Text *in, Span *key)
{
    bool escaped;
    if (next(in) != '"' || !take_string(in, key, &escaped) || escaped || next(in) != ':')
        return false;
    in->at++;
    return true;
}

/* An integer of at most MAX_DIGITS digits. */
static bool take_integer(Text *in, int64_t *value)
{
    bool negative = take(in, '-');
    int64_t sum;
    if (!take_digits(in, &sum))
        return false;
    if (in->at < in->end && (*in->at == '.' || (*in->at | 32) == 'e'))
        return false;
    *value = negative ? -sum : sum;
    return true;
}

/* Microseconds as the nearest nanosecond, where every reader gives the same: at most three decimals, or more
 * that say what the sums of a program in floats say, 16.000999999999998, less than 0.001 ns off. */
static bool take_time(Text *in, int64_t *nanoseconds)
{
    bool negative = take(in, '-');
    int64_t sum;
    if (!take_digits(in, &sum) || sum > MAX_MICROSECONDS)
        return false;
    int decimals = 0, zeros = 0, nines = 0;
    if (take(in, '.')) {
        if (!is_digit(in))
            return false;
        for (; is_digit(in); in->at++, decimals += decimals < 6) {
            if (decimals < 3) {
                sum = sum * 10 + (*in->at - '0');
            } else if (decimals < 6) {
                zeros += *in->at == '0';
                nines += *in->at == '9';
            }
        }
    }
    if (in->at < in->end && (*in->at | 32) == 'e')
        return false;
    if (nines == 3)
        sum++;
    else if (zeros < decimals - 3)
        return false;
    for (; decimals < 3; decimals++)
        sum *= 10;
    *nanoseconds = negative ? -sum : sum;
    return true;
}

#endif
