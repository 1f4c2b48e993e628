/* One event of a trace: which fields and arguments count, and what of them is refused. */
#ifndef TRACE_EVENTS_H
#define TRACE_EVENTS_H
#include "json_text.h"

#define MAX_ID 120 /* characters of a pid or tid, quotes included */
#define COLLECTIVE_FIELDS 9
#define SHAPE_FIELDS 3 /* of an operator */

/* What becomes rows, in the order of `batches.OP` and those after it, then what is passed over. */
typedef enum {
    OP, RANGE, CUDA_RUNTIME, CUDA_DRIVER, HIP_RUNTIME, KERNEL, MEMCPY, MEMSET, MEMORY, WINDOW, KINDS, SKIPPED, UNKNOWN
} Kind;

#define IS(span, word) ((span).length == sizeof(word) - 1 && !memcmp((span).text, word, sizeof(word) - 1))

static Kind kind_of(Span category)
{
    switch (category.length) {
    case 4: return IS(category, "ac2g") ? SKIPPED : UNKNOWN;
    case 5: return IS(category, "Trace") ? WINDOW : UNKNOWN;
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
    case 17: return IS(category, "cpu_instant_event") ? MEMORY : UNKNOWN;
    case 19: return IS(category, "gpu_user_annotation") || IS(category, "cuda_profiler_range") ? SKIPPED : UNKNOWN;
    default: return UNKNOWN;
    }
}

static bool on_gpu(Kind kind) { return kind == KERNEL || kind == MEMCPY || kind == MEMSET; }
static bool is_launch(Kind kind) { return kind == CUDA_RUNTIME || kind == CUDA_DRIVER || kind == HIP_RUNTIME; }
static bool reads_args(Kind kind) { return on_gpu(kind) || is_launch(kind) || kind == MEMORY; }

/* Arguments that are numbers; those below are a collective's or an operator's, by their place
 * in `event_args.CollectiveArgs` and `ShapeArgs`. */
enum {
    DEVICE = COLLECTIVE_FIELDS, STREAM, CORRELATION, BYTES, ALLOCATED, RESERVED, MEMORY_DEVICE, MEMORY_TYPE, OTHER
};

static int argument_of(Span key, Kind kind)
{
    if (is_launch(kind))
        return IS(key, "correlation") ? CORRELATION : OTHER;
    if (kind == OP)
        return IS(key, "Input Dims") ? 0 : IS(key, "Input type") ? 1 : IS(key, "Concrete Inputs") ? 2 : OTHER;
    if (kind == MEMORY)
        return IS(key, "Total Allocated") ? ALLOCATED : IS(key, "Total Reserved") ? RESERVED
             : IS(key, "Device Id") ? MEMORY_DEVICE : IS(key, "Device Type") ? MEMORY_TYPE : OTHER;
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
    unsigned seen; /* a bit an argument; the others are not set */
    Span said[COLLECTIVE_FIELDS];
    int64_t numbers[OTHER - DEVICE];
} Arguments;

static int64_t number_of(const Arguments *told, int argument, int64_t instead)
{
    return told->seen & 1u << argument ? told->numbers[argument - DEVICE] : instead;
}

/* The arguments that are read of an event of this kind: an object. */
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
        if (!take_key(in, &key))
            return false;
        skip_space(in);
        int argument = argument_of(key, kind);
        if (argument != OTHER) {
            if (found->seen & 1u << argument)
                return false;
            found->seen |= 1u << argument;
        }
        const uint8_t *begin = in->at;
        if (argument >= DEVICE && argument < OTHER ? !take_integer(in, &found->numbers[argument - DEVICE])
                                                   : !skip_value(in))
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
    const uint8_t *args; /* where they begin, when they came before the category or are an operator's */
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
        if (!odd && reads_args(event->kind))
            return take_arguments(in, event->kind, &event->arguments);
        event->args = event->kind == UNKNOWN || event->kind == OP ? begin : NULL;
        good = skip_value(in);
        break;
    default:
        return skip_value(in);
    }
    if (odd)
        event->odd |= field;
    return good;
}

/* Whether an event that becomes a row has all that the row needs; one that becomes none is SKIPPED then. */
static bool is_whole(const Text *in, Event *event)
{
    unsigned needed = NAME | TS | DUR, checked = ~0u;
    if (event->kind == SKIPPED)
        return true;
    if (event->kind == MEMORY) {
        bool named = event->seen & NAME && !(event->odd & NAME);
        if (named && memchr(event->name.text, '\\', event->name.length))
            return false;
        if (!named || !IS(event->name, "\"[memory]\"") || !(event->seen & ARGS) || event->odd & ARGS) {
            event->kind = SKIPPED;
            return true;
        }
        needed = checked = TS;
    } else if (event->kind == WINDOW) {
        needed = checked = TS | DUR;
    } else if (!reads_args(event->kind)) {
        checked = ~(unsigned)ARGS;
    }
    if ((event->seen & needed) != needed || event->odd & checked)
        return false;
    Text again = {event->args, in->at};
    if (event->args && reads_args(event->kind) && !take_arguments(&again, event->kind, &event->arguments))
        return false;
    if (event->kind == MEMORY && !(event->arguments.seen & 1u << ALLOCATED))
        event->kind = SKIPPED;
    return true;
}

/* One event, whose kind is never UNKNOWN then. */
static bool take_event(Text *in, Event *event)
{
    event->kind = UNKNOWN;
    event->seen = event->odd = event->arguments.seen = 0;
    event->start = event->duration = 0;
    event->pid = event->tid = (Span){NULL, 0};
    event->args = NULL;
    if (!take(in, '{'))
        return false;
    for (uint8_t follows = ','; follows == ',';) {
        Span key;
        if (!take_key(in, &key))
            return false;
        skip_space(in);
        unsigned field = field_of(key);
        if (event->seen & field)
            return false;
        event->seen |= field;
        if (!take_field(in, field, event))
            return false;
        follows = next(in);
        if (follows != ',' && follows != '}')
            return false;
        in->at++;
    }
    if (event->kind == UNKNOWN)
        event->kind = SKIPPED; /* metadata have no category */
    return is_whole(in, event);
}

#endif
