/* One event of a trace: which fields and arguments count, and what of them is refused. */
#ifndef TRACE_EVENTS_H
#define TRACE_EVENTS_H
#include "json_text.h"

#define MAX_ID 120 /* characters of a pid or tid, quotes included */
#define COLLECTIVE_FIELDS 9

/* The categories that become rows, in the order of `scanned.KINDS`, then those that are passed over. */
typedef enum { OP, RANGE, CUDA_RUNTIME, CUDA_DRIVER, HIP_RUNTIME, KERNEL, MEMCPY, MEMSET, KINDS, SKIPPED, UNKNOWN } Kind;

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
    unsigned seen; /* a bit an argument; what was not seen is not said, and a default as a number */
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

/* One event, whose kind is never UNKNOWN then; what becomes a row has all that a row needs. */
static bool take_event(Text *in, Event *event)
{
    event->kind = UNKNOWN;
    event->seen = event->odd = event->arguments.seen = 0;
    event->pid = event->tid = (Span){NULL, 0};
    event->args = NULL;
    event->arguments.device = event->arguments.stream = 0;
    event->arguments.correlation = event->arguments.bytes = -1;
    if (!take(in, '{'))
        return false;
    for (uint8_t follows = ','; follows == ',';) {
        Span key;
        bool escaped;
        if (next(in) != '"' || !take_string(in, &key, &escaped) || escaped || next(in) != ':')
            return false;
        in->at++;
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
    if (event->kind == SKIPPED)
        return true;
    if (event->kind == UNKNOWN || (event->seen & (NAME | TS | DUR)) != (NAME | TS | DUR))
        return false;
    bool reads_args = on_gpu(event->kind) || is_launch(event->kind);
    if (event->odd & (reads_args ? ~0u : ~(unsigned)ARGS))
        return false;
    Text again = {event->args, in->at};
    return !event->args || !reads_args || take_arguments(&again, event->kind, &event->arguments);
}

#endif
