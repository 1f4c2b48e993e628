/* Scans a batch of a torch trace's events straight to columns, or refuses it whole.
 *
 * What is accepted is narrower than JSON and than `typed_events`: whenever a batch is accepted, its columns are
 * those that the reader in Python gives, and the text was exactly a list of whole events. Everything unusual
 * (an escape in a key, a number that no int64 of nanoseconds holds, a key that comes twice, a category that
 * `typed_events` does not know, text that is no UTF-8) is refused, and the caller reads the batch in Python.
 *
 * The text is hostile: every read is checked against its end, nesting is a counter and not recursion, every
 * length is bounded by the text's, which is bounded by MAX_TEXT.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__) && !defined(TRACE_SCAN_PORTABLE)
#include <emmintrin.h>
#define HAS_SSE2 1
#endif

#define MAX_TEXT ((Py_ssize_t)1 << 30)
#define MAX_DEPTH 60          /* bits of the word that remembers what is open */
#define MAX_NUMBER 40         /* characters of a number nothing is computed from */
#define MAX_DIGITS 18         /* of an integer; more may not fit an int64 */
#define MAX_MICROSECONDS ((((int64_t)1 << 62) - 1) / 1000 - 1)
#define MAX_ID 120            /* characters of a pid or tid, quotes included */
#define MAX_PROBES 64         /* of a hash table; names made to collide are refused, not searched for ever */
#define COLLECTIVE_FIELDS 9

typedef enum { TAKEN, REFUSED, NO_MEMORY } Outcome;

/* The categories that become rows, in the order of `scanned.KINDS`, then those that are passed over. */
typedef enum { OP, RANGE, CUDA_RUNTIME, CUDA_DRIVER, HIP_RUNTIME, KERNEL, MEMCPY, MEMSET, KINDS, SKIPPED, UNKNOWN } Kind;

typedef struct { const uint8_t *text; size_t length; } Span;

/* ---- Texts that occur again and again, numbered. */

typedef struct {
    uint64_t hash;
    size_t at;      /* of the text in `texts` */
    uint32_t length;
    int32_t code;   /* -1 until a row of an accepted batch has it */
} Entry;

typedef struct {
    uint8_t *texts;
    size_t used, room;
    Entry *entries;
    uint32_t count, entries_room;
    uint32_t *slots; /* index of an entry + 1 */
    uint32_t slots_room;
    uint32_t *coded; /* entry of every code given */
    size_t coded_room;
    uint32_t codes;
} Table;

typedef struct {
    int64_t start, duration, correlation, size;
    uint32_t name, track, collective; /* entries, later codes; NO_ENTRY where there is none */
    int32_t device, stream;
} Row;

#define NO_ENTRY UINT32_MAX

typedef struct { Row *rows; size_t count, room; } Rows;

typedef struct {
    PyObject_HEAD
    Table names, tracks, collectives;
    Rows rows[KINDS];
    uint8_t *scratch;
    size_t scratch_room;
    bool busy;
} Scanner;

typedef struct { const uint8_t *at, *end; } Text;

static uint64_t load64(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static uint64_t hash_of(const uint8_t *text, size_t length)
{
    uint64_t hash = 0x9E3779B97F4A7C15u ^ length, rest = 0;
    for (; length >= 8; text += 8, length -= 8) {
        hash = (hash ^ load64(text)) * 0xD6E8FEB86659FD93u;
        hash ^= hash >> 32;
    }
    memcpy(&rest, text, length);
    hash = (hash ^ rest) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
    hash *= 0xD6E8FEB86659FD93u;
    return hash ^ (hash >> 29);
}

/* `*array` with room for `needed` things of `size` bytes; its old contents stay. */
static bool grow(void **array, size_t *room, size_t needed, size_t size)
{
    size_t wanted = *room ? *room : 256;
    if (needed <= *room)
        return true;
    while (wanted < needed) {
        if (wanted > SIZE_MAX / 4)
            return false;
        wanted *= 2;
    }
    if (wanted > PY_SSIZE_T_MAX / size)
        return false;
    void *larger = realloc(*array, wanted * size);
    if (!larger)
        return false;
    *array = larger;
    *room = wanted;
    return true;
}

static uint32_t *slot_of(const Table *table, const uint8_t *text, size_t length, uint64_t hash)
{
    uint32_t mask = table->slots_room - 1, at = (uint32_t)hash & mask;
    for (uint32_t probe = 1; probe <= MAX_PROBES; at = (at + probe++) & mask) {
        uint32_t *slot = &table->slots[at];
        if (!*slot)
            return slot;
        const Entry *entry = &table->entries[*slot - 1];
        if (entry->hash == hash && entry->length == length && !memcmp(table->texts + entry->at, text, length))
            return slot;
    }
    return NULL;
}

static Outcome more_slots(Table *table)
{
    uint32_t room = table->slots_room ? table->slots_room * 2 : 1024;
    if (room > (uint32_t)1 << 29)
        return REFUSED;
    uint32_t *slots = calloc(room, sizeof *slots);
    if (!slots)
        return NO_MEMORY;
    for (uint32_t i = 0; i < table->count; i++) {
        uint32_t at = (uint32_t)table->entries[i].hash & (room - 1), probe = 1;
        while (slots[at])
            at = (at + probe++) & (room - 1);
        slots[at] = i + 1;
    }
    free(table->slots);
    table->slots = slots;
    table->slots_room = room;
    return TAKEN;
}

/* The number of the entry that holds `text`. */
static Outcome entry_of(Table *table, const uint8_t *text, size_t length, uint32_t *found)
{
    uint64_t hash = hash_of(text, length);
    if (table->count * 2 >= table->slots_room) {
        Outcome outcome = more_slots(table);
        if (outcome != TAKEN)
            return outcome;
    }
    uint32_t *slot = slot_of(table, text, length, hash);
    if (!slot)
        return REFUSED;
    if (!*slot) {
        size_t room = table->entries_room;
        void *entries = table->entries, *texts = table->texts;
        bool grown = grow(&entries, &room, (size_t)table->count + 1, sizeof(Entry));
        table->entries = entries;
        if (!grown || room > UINT32_MAX)
            return NO_MEMORY;
        table->entries_room = (uint32_t)room;
        grown = grow(&texts, &table->room, table->used + length, 1);
        table->texts = texts;
        if (!grown)
            return NO_MEMORY;
        memcpy(table->texts + table->used, text, length);
        table->entries[table->count] = (Entry){hash, table->used, (uint32_t)length, -1};
        table->used += length;
        *slot = ++table->count;
    }
    *found = *slot - 1;
    return TAKEN;
}

/* ---- JSON. */

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

/* An integer of at most MAX_DIGITS digits. */
static bool take_integer(Text *in, int64_t *value)
{
    bool negative = take(in, '-');
    const uint8_t *begin = in->at;
    int64_t sum = 0;
    for (; is_digit(in); in->at++) {
        if (in->at - begin == MAX_DIGITS)
            return false;
        sum = sum * 10 + (*in->at - '0');
    }
    if (in->at == begin || (*begin == '0' && in->at - begin > 1))
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
    const uint8_t *begin = in->at;
    int64_t sum = 0;
    for (; is_digit(in); in->at++) {
        if (in->at - begin == MAX_DIGITS)
            return false;
        sum = sum * 10 + (*in->at - '0');
    }
    if (in->at == begin || (*begin == '0' && in->at - begin > 1) || sum > MAX_MICROSECONDS)
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

/* ---- Events. */

#define IS(span, word) ((span).length == sizeof(word) - 1 && !memcmp((span).text, word, sizeof(word) - 1))

static Kind kind_of(Span category)
{
    switch (category.length) {
    case 4: return IS(category, "ac2g") ? SKIPPED : UNKNOWN;
    case 6: return IS(category, "cpu_op") ? OP : IS(category, "kernel") ? KERNEL
                 : IS(category, "fwdbwd") ? SKIPPED : UNKNOWN;
    case 8: return IS(category, "overhead") ? SKIPPED : UNKNOWN;
    case 9: return IS(category, "async_gpu") || IS(category, "cuda_sync") || IS(category, "async_cpu")
                 ? SKIPPED : UNKNOWN;
    case 10: return IS(category, "gpu_memcpy") ? MEMCPY : IS(category, "gpu_memset") ? MEMSET : UNKNOWN;
    case 11: return IS(category, "cuda_driver") ? CUDA_DRIVER : IS(category, "hip_runtime") ? HIP_RUNTIME : UNKNOWN;
    case 12: return IS(category, "cuda_runtime") ? CUDA_RUNTIME : UNKNOWN;
    case 15: return IS(category, "user_annotation") ? RANGE : IS(category, "python_function") ? SKIPPED : UNKNOWN;
    case 16: return IS(category, "async_cpu_to_gpu") ? SKIPPED : UNKNOWN;
    case 19: return IS(category, "gpu_user_annotation") || IS(category, "cuda_profiler_range") ? SKIPPED : UNKNOWN;
    default: return UNKNOWN;
    }
}

static bool on_gpu(Kind kind) { return kind == KERNEL || kind == MEMCPY || kind == MEMSET; }
static bool is_launch(Kind kind) { return kind == CUDA_RUNTIME || kind == CUDA_DRIVER || kind == HIP_RUNTIME; }

enum { DEVICE = COLLECTIVE_FIELDS, STREAM, CORRELATION, BYTES, OTHER };

/* Which argument a key names: a field of `typed_events.CollectiveArgs` by its place there, or one above. */
static int argument_of(Span key)
{
    switch (key.length) {
    case 3: return IS(key, "Seq") ? 8 : OTHER;
    case 5: return IS(key, "dtype") ? 1 : IS(key, "bytes") ? BYTES : OTHER;
    case 6: return IS(key, "device") ? DEVICE : IS(key, "stream") ? STREAM : OTHER;
    case 10: return IS(key, "Group size") ? 4 : OTHER;
    case 11: return IS(key, "correlation") ? CORRELATION : OTHER;
    case 13: return IS(key, "In msg nelems") ? 2 : OTHER;
    case 14: return IS(key, "Out msg nelems") ? 3 : OTHER;
    case 15: return IS(key, "Collective name") ? 0 : OTHER;
    case 18: return IS(key, "Process Group Name") ? 5 : OTHER;
    case 19: return IS(key, "Process Group Ranks") ? 7 : OTHER;
    case 25: return IS(key, "Process Group Description") ? 6 : OTHER;
    default: return OTHER;
    }
}

typedef struct {
    unsigned seen; /* a bit an argument */
    int64_t device, stream, correlation, bytes;
    Span said[COLLECTIVE_FIELDS];
} Arguments;

/* The arguments of a launch or of work on a GPU: an object. */
static bool take_arguments(Text *in, Kind kind, Arguments *found)
{
    if (!take(in, '{'))
        return false;
    if (next(in) == '}') {
        in->at++;
        return true;
    }
    for (;;) {
        Span key;
        bool escaped;
        if (next(in) != '"' || !take_string(in, &key, &escaped) || escaped || next(in) != ':')
            return false;
        in->at++;
        skip_space(in);
        int argument = argument_of(key);
        if (is_launch(kind) && argument != CORRELATION)
            argument = OTHER;
        if (argument != OTHER) {
            if (found->seen & 1u << argument)
                return false;
            found->seen |= 1u << argument;
        }
        const uint8_t *begin = in->at;
        bool good = argument == DEVICE        ? take_integer(in, &found->device)
                    : argument == STREAM      ? take_integer(in, &found->stream)
                    : argument == CORRELATION ? take_integer(in, &found->correlation)
                    : argument == BYTES       ? take_integer(in, &found->bytes)
                                              : skip_value(in);
        if (!good)
            return false;
        if (argument < COLLECTIVE_FIELDS)
            found->said[argument] = (Span){begin, (size_t)(in->at - begin)};
        uint8_t follows = next(in);
        in->at += follows == ',' || follows == '}';
        if (follows == '}')
            return true;
        if (follows != ',')
            return false;
    }
}

enum { CAT = 1, NAME = 2, TS = 4, DUR = 8, PID = 16, TID = 32, ARGS = 64, PH = 128 };

static unsigned field_of(Span key)
{
    switch (key.length) {
    case 2: return IS(key, "ts") ? TS : IS(key, "ph") ? PH : 0;
    case 3: return IS(key, "cat") ? CAT : IS(key, "dur") ? DUR : IS(key, "pid") ? PID : IS(key, "tid") ? TID : 0;
    case 4: return IS(key, "name") ? NAME : IS(key, "args") ? ARGS : 0;
    default: return 0;
    }
}

typedef struct {
    Kind kind;
    unsigned seen, odd; /* a bit a field: that is there; that only an event nothing is computed from may have */
    Span name, pid, tid;
    int64_t start, duration;
    const uint8_t *args; /* where they begin, when they came before the category */
    Arguments arguments;
} Event;

/* A time; a value that is none is passed over, and said to be odd. */
static bool take_or_skip_time(Text *in, int64_t *time, bool *odd)
{
    const uint8_t *begin = in->at;
    if (take_time(in, time))
        return true;
    in->at = begin;
    *odd = true;
    return skip_value(in);
}

static bool take_field(Text *in, unsigned field, Event *event)
{
    const uint8_t *begin = in->at;
    uint8_t first = begin < in->end ? *begin : 0;
    bool odd = false, escaped, good;
    Span span;
    switch (field) {
    case CAT:
        if (first != '"' || !take_string(in, &span, &escaped) || escaped)
            return false;
        event->kind = kind_of(span);
        return event->kind != UNKNOWN;
    case PH:
        return first == '"' && take_string(in, &span, &escaped);
    case TS:
        good = take_or_skip_time(in, &event->start, &odd);
        break;
    case DUR:
        good = take_or_skip_time(in, &event->duration, &odd);
        break;
    case NAME:
        odd = first != '"';
        good = skip_value(in);
        event->name = (Span){begin, (size_t)(in->at - begin)};
        break;
    case PID:
    case TID:
        odd = first == '{' || first == '[' || first == 't' || first == 'f';
        good = skip_value(in);
        span = (Span){begin, (size_t)(in->at - begin)};
        odd = odd || span.length > MAX_ID;
        *(field == PID ? &event->pid : &event->tid) = span;
        break;
    case ARGS:
        odd = first != '{';
        if (first != '{' && first != 'n') /* what the untyped reader takes */
            return false;
        if (!odd && (on_gpu(event->kind) || is_launch(event->kind)))
            return take_arguments(in, event->kind, &event->arguments);
        event->args = event->kind == UNKNOWN ? begin : NULL;
        good = skip_value(in);
        break;
    default:
        return skip_value(in);
    }
    if (odd)
        event->odd |= field;
    return good;
}

/* What is told of a process or thread by a number: its integer; false where it is anything else. */
static bool integer_of(Span span, int64_t *value)
{
    Text in = {span.text, span.text + span.length};
    return span.length && take_integer(&in, value) && in.at == in.end;
}

/* As `torch_columns._codes`: what fits, else -1. */
static int32_t code_of(int64_t value) { return value >= -1 && value <= INT32_MAX ? (int32_t)value : -1; }

static Outcome track_of(Scanner *self, const Event *event, uint32_t *entry)
{
    uint8_t key[2 * MAX_ID + 3];
    size_t used = 0;
    const Span ids[2] = {event->pid, event->tid};
    key[used++] = '[';
    for (int i = 0; i < 2; i++) {
        Span id = ids[i].length ? ids[i] : (Span){(const uint8_t *)"null", 4};
        memcpy(key + used, id.text, id.length);
        used += id.length;
        key[used++] = i ? ']' : ',';
    }
    return entry_of(&self->tracks, key, used, entry);
}

/* What a kernel says of its collective, as the text of a list. */
static Outcome collective_of(Scanner *self, const Arguments *told, uint32_t *entry)
{
    size_t needed = COLLECTIVE_FIELDS * 5 + 2, used = 0;
    *entry = NO_ENTRY;
    if (!told->said[0].length || IS(told->said[0], "null"))
        return TAKEN;
    for (int i = 0; i < COLLECTIVE_FIELDS; i++)
        needed += told->said[i].length;
    void *scratch = self->scratch;
    bool grown = grow(&scratch, &self->scratch_room, needed, 1);
    self->scratch = scratch;
    if (!grown)
        return NO_MEMORY;
    for (int i = 0; i < COLLECTIVE_FIELDS; i++) {
        Span said = told->said[i].length ? told->said[i] : (Span){(const uint8_t *)"null", 4};
        self->scratch[used++] = i ? ',' : '[';
        memcpy(self->scratch + used, said.text, said.length);
        used += said.length;
    }
    self->scratch[used++] = ']';
    return entry_of(&self->collectives, self->scratch, used, entry);
}

static Outcome add_row(Scanner *self, const Event *event)
{
    const Arguments *told = &event->arguments;
    Rows *rows = &self->rows[event->kind];
    Row row = {.start = event->start, .duration = event->duration < 0 ? 0 : event->duration, .track = NO_ENTRY,
               .correlation = told->correlation, .size = -1, .collective = NO_ENTRY};
    Outcome outcome = entry_of(&self->names, event->name.text, event->name.length, &row.name);
    if (outcome == TAKEN && on_gpu(event->kind)) {
        int64_t device = told->device, stream = told->stream;
        if (!(told->seen & 1u << DEVICE) && !integer_of(event->pid, &device))
            return REFUSED;
        if (!(told->seen & 1u << STREAM) && !integer_of(event->tid, &stream))
            return REFUSED;
        row.device = code_of(device);
        row.stream = code_of(stream);
        row.size = event->kind == KERNEL ? -1 : told->bytes;
        outcome = collective_of(self, told, &row.collective);
    } else if (outcome == TAKEN) {
        outcome = track_of(self, event, &row.track);
    }
    if (outcome != TAKEN)
        return outcome;
    if (rows->count == rows->room) {
        void *larger = rows->rows;
        bool grown = grow(&larger, &rows->room, rows->count + 1, sizeof row);
        rows->rows = larger;
        if (!grown)
            return NO_MEMORY;
    }
    rows->rows[rows->count++] = row;
    return TAKEN;
}

/* One event; `kind` is what it is. */
static Outcome take_event(Scanner *self, Text *in, Kind *kind)
{
    Event event;
    event.kind = UNKNOWN;
    event.seen = event.odd = 0;
    event.pid = event.tid = (Span){NULL, 0};
    event.args = NULL;
    memset(&event.arguments, 0, sizeof event.arguments);
    event.arguments.correlation = event.arguments.bytes = -1;
    if (!take(in, '{'))
        return REFUSED;
    for (uint8_t follows = ','; follows == ',';) {
        Span key;
        bool escaped;
        if (next(in) != '"' || !take_string(in, &key, &escaped) || escaped || next(in) != ':')
            return REFUSED;
        in->at++;
        skip_space(in);
        unsigned field = field_of(key);
        if (event.seen & field)
            return REFUSED;
        event.seen |= field;
        if (!take_field(in, field, &event))
            return REFUSED;
        follows = next(in);
        if (follows != ',' && follows != '}')
            return REFUSED;
        in->at++;
    }
    *kind = event.kind;
    if (event.kind == SKIPPED)
        return TAKEN;
    if (event.kind == UNKNOWN || (event.seen & (NAME | TS | DUR)) != (NAME | TS | DUR))
        return REFUSED;
    bool reads_args = on_gpu(event.kind) || is_launch(event.kind);
    if (event.odd & (reads_args ? ~0u : ~(unsigned)ARGS))
        return REFUSED;
    if (event.args && reads_args) {
        Text again = {event.args, in->at};
        if (!take_arguments(&again, event.kind, &event.arguments))
            return REFUSED;
    }
    return add_row(self, &event);
}

/* All events of a text, which must end right behind the last. Needs no interpreter. */
static Outcome take_events(Scanner *self, Text in, size_t *events, Kind *order, int *kinds)
{
    bool met[UNKNOWN + 1] = {false};
    *events = 0;
    *kinds = 0;
    for (int kind = 0; kind < KINDS; kind++)
        self->rows[kind].count = 0;
    for (;;) {
        Kind kind = UNKNOWN;
        skip_space(&in);
        Outcome outcome = take_event(self, &in, &kind);
        if (outcome != TAKEN)
            return outcome;
        ++*events;
        if (kind < KINDS && !met[kind]) {
            met[kind] = true;
            order[(*kinds)++] = kind;
        }
        if (!next(&in))
            return in.at == in.end ? TAKEN : REFUSED;
        if (!take(&in, ','))
            return REFUSED;
    }
}

/* The code of an entry; one that never had a code gets the next. */
static uint32_t numbered(Table *table, uint32_t entry)
{
    if (entry == NO_ENTRY)
        return NO_ENTRY;
    Entry *found = &table->entries[entry];
    if (found->code < 0) {
        found->code = (int32_t)table->codes;
        table->coded[table->codes++] = entry;
    }
    return (uint32_t)found->code;
}

static bool room_for_codes(Table *table)
{
    void *coded = table->coded;
    bool grown = grow(&coded, &table->coded_room, table->count, sizeof *table->coded);
    table->coded = coded;
    return grown;
}

/* Codes in the order in which `torch_columns` would give them: kind by kind, row by row. */
static Outcome number_rows(Scanner *self, const Kind *order, int kinds)
{
    if (!room_for_codes(&self->names) || !room_for_codes(&self->tracks) || !room_for_codes(&self->collectives))
        return NO_MEMORY;
    for (int i = 0; i < kinds; i++) {
        Rows *rows = &self->rows[order[i]];
        for (size_t at = 0; at < rows->count; at++) {
            Row *row = &rows->rows[at];
            row->name = numbered(&self->names, row->name);
            row->track = numbered(&self->tracks, row->track);
            row->collective = numbered(&self->collectives, row->collective);
        }
    }
    return TAKEN;
}

/* ---- Python. */

/* One member of all rows as the bytes of an array. */
static PyObject *column(const Rows *rows, size_t offset, size_t width)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rows->count * width));
    if (!made)
        return NULL;
    char *to = PyBytes_AsString(made);
    const char *from = (const char *)rows->rows + offset;
    if (width == 8)
        for (size_t at = 0; at < rows->count; at++)
            memcpy(to + at * 8, from + at * sizeof(Row), 8);
    else
        for (size_t at = 0; at < rows->count; at++)
            memcpy(to + at * 4, from + at * sizeof(Row), 4);
    return made;
}

#define COLUMN(member) column(rows, offsetof(Row, member), sizeof(((Row *)NULL)->member))

/* (kind, start, duration, name, track, correlation, device, stream, size, collective) */
static PyObject *part_of(const Rows *rows, Kind kind)
{
    return Py_BuildValue("(iNNNNNNNNN)", (int)kind, COLUMN(start), COLUMN(duration), COLUMN(name), COLUMN(track),
                         COLUMN(correlation), COLUMN(device), COLUMN(stream), COLUMN(size), COLUMN(collective));
}

/* The texts that got their code in this batch, as one JSON list. */
static PyObject *new_texts(const Table *table, uint32_t first)
{
    size_t needed = 2;
    for (uint32_t code = first; code < table->codes; code++)
        needed += table->entries[table->coded[code]].length + (size_t)(code > first);
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)needed);
    if (!made)
        return NULL;
    char *to = PyBytes_AsString(made);
    *to++ = '[';
    for (uint32_t code = first; code < table->codes; code++) {
        const Entry *entry = &table->entries[table->coded[code]];
        if (code > first)
            *to++ = ',';
        memcpy(to, table->texts + entry->at, entry->length);
        to += entry->length;
    }
    *to = ']';
    return made;
}

static PyObject *parts_of(const Scanner *self, const Kind *order, int kinds)
{
    PyObject *parts = PyList_New(kinds);
    for (int i = 0; parts && i < kinds; i++) {
        PyObject *part = part_of(&self->rows[order[i]], order[i]);
        if (!part || PyList_SetItem(parts, i, part))
            Py_CLEAR(parts);
    }
    return parts;
}

static PyObject *scan(PyObject *object, PyObject *args)
{
    Scanner *self = (Scanner *)object;
    PyObject *text;
    Py_ssize_t end;
    Kind order[KINDS];
    int kinds = 0;
    size_t events = 0;
    if (!PyArg_ParseTuple(args, "Sn:scan", &text, &end))
        return NULL;
    if (end < 0 || end > PyBytes_Size(text)) {
        PyErr_SetString(PyExc_ValueError, "the end lies outside of the text");
        return NULL;
    }
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this scanner is at work in another thread");
        return NULL;
    }
    if (end > MAX_TEXT)
        Py_RETURN_NONE;
    const uint8_t *begin = (const uint8_t *)PyBytes_AsString(text);
    const uint32_t names = self->names.codes, tracks = self->tracks.codes, told = self->collectives.codes;
    Outcome outcome;
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    outcome = take_events(self, (Text){begin, begin + end}, &events, order, &kinds);
    if (outcome == TAKEN)
        outcome = number_rows(self, order, kinds);
    Py_END_ALLOW_THREADS
    self->busy = false;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    if (outcome == REFUSED)
        Py_RETURN_NONE;
    return Py_BuildValue("(nNNNN)", (Py_ssize_t)events, parts_of(self, order, kinds), new_texts(&self->names, names),
                         new_texts(&self->tracks, tracks), new_texts(&self->collectives, told));
}

static PyObject *new_scanner(PyTypeObject *type, PyObject *args, PyObject *named)
{
    if (PyTuple_Size(args) || (named && PyDict_Size(named))) {
        PyErr_SetString(PyExc_TypeError, "Scanner() takes no arguments");
        return NULL;
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return make(type, 0); /* all zero: no rows, empty tables */
}

static void free_table(Table *table)
{
    free(table->texts);
    free(table->entries);
    free(table->slots);
    free(table->coded);
}

static void free_scanner(PyObject *object)
{
    Scanner *self = (Scanner *)object;
    PyTypeObject *type = Py_TYPE(object);
    free_table(&self->names);
    free_table(&self->tracks);
    free_table(&self->collectives);
    for (int kind = 0; kind < KINDS; kind++)
        free(self->rows[kind].rows);
    free(self->scratch);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(scan_doc, "scan(text, end)\n--\n\n"
             "Columns of the events that text[:end] is a list of, None where anything about them is unusual.");

static PyMethodDef methods[] = {{"scan", scan, METH_VARARGS, scan_doc}, {NULL, NULL, 0, NULL}};

static PyType_Slot scanner_slots[] = {
    {Py_tp_new, new_scanner},
    {Py_tp_dealloc, free_scanner},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Scans the batches of one trace; equal texts have equal codes in all of them."},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    "rlprof_ops.analyze.readers.scan._trace_scan.Scanner", (int)sizeof(Scanner), 0, Py_TPFLAGS_DEFAULT, scanner_slots,
};

static int fill_module(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&scanner_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Scanner", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_trace_scan", "Scans torch traces straight to columns.", 0, NULL, module_slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__trace_scan(void) { return PyModuleDef_Init(&module); }
