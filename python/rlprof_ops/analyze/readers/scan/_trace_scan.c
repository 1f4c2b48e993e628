/* Scans a batch of a torch trace's events straight to columns, or refuses it whole.
 *
 * What is accepted is narrower than JSON: whenever a batch is accepted, its columns are those that the reader in
 * Python gives, by type and without, and the text was exactly a list of whole events. Everything unusual (an
 * escape in a key, a number that no int64 of nanoseconds holds, a key that comes twice, an unknown category, text
 * that is no UTF-8) is refused, and the caller reads the batch in Python.
 *
 * The text is hostile: every read is checked against its end, nesting is a counter and not recursion, every
 * length is bounded by the text's, which is bounded by MAX_TEXT.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "text_table.h"
#include "trace_events.h"

#define MAX_TEXT ((Py_ssize_t)1 << 30)

typedef struct {
    int64_t start, duration, correlation, size;
    uint32_t name, track, told; /* entries, later codes; NO_ENTRY where there is none */
    int32_t device, stream;
} Row;

typedef struct { Row *rows; size_t count, room; } Rows;

typedef struct {
    PyObject_HEAD
    Table names, tracks, collectives, shapes;
    uint32_t counted; /* entries of names: operators whose shapes are kept */
    Rows rows[KINDS];
    uint8_t *scratch;
    size_t scratch_room;
    bool busy;
} Scanner;

/* What is told of a process or thread by a number: its integer; false where it is anything else. */
static bool integer_of(Span span, int64_t *value)
{
    if (!span.length)
        return false;
    Text in = {span.text, span.text + span.length};
    return take_integer(&in, value) && in.at == in.end;
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

/* What an event says in its first `fields` arguments, as the text of a list; nothing without the first. */
static Outcome told_of(Scanner *self, const Arguments *told, int fields, Table *table, uint32_t *entry)
{
    const Span null = {(const uint8_t *)"null", 4};
    Span said[COLLECTIVE_FIELDS];
    size_t needed = (size_t)fields + 1, used = 0;
    *entry = NO_ENTRY;
    if (!(told->seen & 1u) || IS(told->said[0], "null"))
        return TAKEN;
    for (int i = 0; i < fields; i++) {
        said[i] = told->seen & 1u << i ? told->said[i] : null;
        needed += said[i].length;
    }
    void *scratch = self->scratch;
    bool grown = grow(&scratch, &self->scratch_room, needed, 1);
    self->scratch = scratch;
    if (!grown)
        return NO_MEMORY;
    for (int i = 0; i < fields; i++) {
        self->scratch[used++] = i ? ',' : '[';
        memcpy(self->scratch + used, said[i].text, said[i].length);
        used += said[i].length;
    }
    self->scratch[used++] = ']';
    return entry_of(table, self->scratch, used, entry);
}

/* The shapes of an operator that is counted. One whose name has another spelling is for the reader in Python. */
static Outcome shape_of(Scanner *self, Event *event, const uint8_t *end, Row *row)
{
    Text args = {event->args, end};
    if (!event->args || event->odd & ARGS)
        return TAKEN;
    if (row->name >= self->counted)
        return memchr(event->name.text, '\\', event->name.length) ? REFUSED : TAKEN;
    if (!take_arguments(&args, OP, &event->arguments))
        return REFUSED;
    return told_of(self, &event->arguments, SHAPE_FIELDS, &self->shapes, &row->told);
}

/* The columns of work on a GPU. */
static Outcome fill_gpu_row(Scanner *self, const Event *event, Row *row)
{
    const Arguments *told = &event->arguments;
    int64_t device = number_of(told, DEVICE, 0), stream = number_of(told, STREAM, 0);
    if (!(told->seen & 1u << DEVICE) && !integer_of(event->pid, &device))
        return REFUSED;
    if (!(told->seen & 1u << STREAM) && !integer_of(event->tid, &stream))
        return REFUSED;
    row->device = code_of(device);
    row->stream = code_of(stream);
    row->size = event->kind == KERNEL ? -1 : number_of(told, BYTES, -1);
    return told_of(self, told, COLLECTIVE_FIELDS, &self->collectives, &row->told);
}

/* A sample of the allocator: what is allocated stands as correlation, what is reserved as size. */
static void fill_memory_row(const Arguments *told, Row *row)
{
    bool on_host = number_of(told, MEMORY_TYPE, -1) == 0;
    row->device = on_host ? -1 : code_of(number_of(told, MEMORY_DEVICE, -1));
    row->correlation = number_of(told, ALLOCATED, -1);
    row->size = number_of(told, RESERVED, -1);
}

static Outcome add_row(Scanner *self, Event *event, const uint8_t *end)
{
    Rows *rows = &self->rows[event->kind];
    Row row = {.start = event->start, .duration = event->duration < 0 ? 0 : event->duration, .name = NO_ENTRY,
               .track = NO_ENTRY, .correlation = number_of(&event->arguments, CORRELATION, -1), .size = -1,
               .told = NO_ENTRY};
    Outcome outcome = TAKEN;
    if (event->kind == MEMORY)
        fill_memory_row(&event->arguments, &row);
    else if (event->kind != WINDOW)
        outcome = entry_of(&self->names, event->name.text, event->name.length, &row.name);
    if (outcome == TAKEN && on_gpu(event->kind))
        outcome = fill_gpu_row(self, event, &row);
    else if (outcome == TAKEN && event->kind <= HIP_RUNTIME)
        outcome = track_of(self, event, &row.track);
    if (outcome == TAKEN && event->kind == OP)
        outcome = shape_of(self, event, end, &row);
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

/* All events of a text, which must end right behind the last. Needs no interpreter. */
static Outcome take_events(Scanner *self, Text in, size_t *events, Kind *order, int *kinds)
{
    bool met[UNKNOWN + 1] = {false};
    *events = 0;
    *kinds = 0;
    for (int kind = 0; kind < KINDS; kind++)
        self->rows[kind].count = 0;
    for (;;) {
        Event event;
        skip_space(&in);
        if (!take_event(&in, &event))
            return REFUSED;
        Outcome outcome = event.kind == SKIPPED ? TAKEN : add_row(self, &event, in.at);
        if (outcome != TAKEN)
            return outcome;
        ++*events;
        if (event.kind < KINDS && !met[event.kind]) {
            met[event.kind] = true;
            order[(*kinds)++] = event.kind;
        }
        if (!next(&in))
            return in.at == in.end ? TAKEN : REFUSED;
        if (!take(&in, ','))
            return REFUSED;
    }
}

/* Codes in the order in which `torch_columns` would give them: kind by kind, row by row. */
static Outcome number_rows(Scanner *self, const Kind *order, int kinds)
{
    if (!room_for_codes(&self->names) || !room_for_codes(&self->tracks) || !room_for_codes(&self->collectives)
        || !room_for_codes(&self->shapes))
        return NO_MEMORY;
    for (int i = 0; i < kinds; i++) {
        Rows *rows = &self->rows[order[i]];
        Table *told = order[i] == OP ? &self->shapes : &self->collectives;
        for (size_t at = 0; at < rows->count; at++) {
            Row *row = &rows->rows[at];
            row->name = numbered(&self->names, row->name);
            row->track = numbered(&self->tracks, row->track);
            row->told = numbered(told, row->told);
        }
    }
    return TAKEN;
}

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

/* (kind, start, duration, name, track, correlation, device, stream, size, told) */
static PyObject *part_of(const Rows *rows, Kind kind)
{
    return Py_BuildValue("(iNNNNNNNNN)", (int)kind, COLUMN(start), COLUMN(duration), COLUMN(name), COLUMN(track),
                         COLUMN(correlation), COLUMN(device), COLUMN(stream), COLUMN(size), COLUMN(told));
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
    const uint32_t shapes = self->shapes.codes;
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
    return Py_BuildValue("(nNNNNN)", (Py_ssize_t)events, parts_of(self, order, kinds), new_texts(&self->names, names),
                         new_texts(&self->tracks, tracks), new_texts(&self->collectives, told),
                         new_texts(&self->shapes, shapes));
}

static PyObject *new_scanner(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *counted;
    static char *words[] = {"counted", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!:TraceScanner", words, &PyTuple_Type, &counted))
        return NULL;
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Scanner *self = (Scanner *)make(type, 0); /* all zero: no rows, empty tables */
    for (Py_ssize_t i = 0; self && i < PyTuple_Size(counted); i++) {
        uint32_t entry;
        char *text;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(counted, i), &text, &length)) {
            Py_CLEAR(self);
        } else if (entry_of(&self->names, (const uint8_t *)text, (size_t)length, &entry) != TAKEN) {
            Py_CLEAR(self);
            PyErr_NoMemory();
        } else {
            self->counted = self->names.count;
        }
    }
    return (PyObject *)self;
}

static void free_scanner(PyObject *object)
{
    Scanner *self = (Scanner *)object;
    PyTypeObject *type = Py_TYPE(object);
    free_table(&self->names);
    free_table(&self->tracks);
    free_table(&self->collectives);
    free_table(&self->shapes);
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
    {Py_tp_doc, "Scans the batches of one trace; equal texts have equal codes in all of them. Takes the names,\n"
                 "in their quotes, of operators whose shapes are kept."},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    "rlprof_ops.analyze.readers.scan._trace_scan.TraceScanner", (int)sizeof(Scanner), 0, Py_TPFLAGS_DEFAULT, scanner_slots,
};

static int fill_module(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&scanner_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "TraceScanner", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_trace_scan", "Scans torch traces straight to columns.", 0, NULL, module_slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__trace_scan(void) { return PyModuleDef_Init(&module); }
