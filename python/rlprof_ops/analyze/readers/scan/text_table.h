/* Texts that occur again and again, numbered in a hash table. */
#ifndef TEXT_TABLE_H
#define TEXT_TABLE_H
#include "json_text.h"

#include <stdlib.h>

#define MAX_PROBES 64 /* names made to collide are refused, not searched for ever */
#define NO_ENTRY UINT32_MAX

typedef enum { TAKEN, REFUSED, NO_MEMORY } Outcome;

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

static void free_table(Table *table)
{
    free(table->texts);
    free(table->entries);
    free(table->slots);
    free(table->coded);
}

#endif
