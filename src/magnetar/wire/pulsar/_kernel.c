/* The message path's bytes, compiled: what `frames.py`, `frequent.py` and the broker do for each entry, done for a run of them in one call.

   Optional: `kernel.py` chooses at import, and everything works without it. Every function answers what its namesake in Python answers, or
   takes less ("not plain"), and the caller goes on in Python from there; it never takes what Python would refuse. tests/property/wire holds
   both together, for any bytes.

   Rules here: what clients send is read through `Reader`, which cannot leave its bounds; every object that is made is owned by one
   variable, and given back on the one way out. Limited API of Python 3.11: one build serves all later versions. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef unsigned char Byte;

/* ---- CRC32C by the processor's instruction: three parts of a block at a time, since each step waits for the one before it */

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HARDWARE __attribute__((target("sse4.2")))
#define CRC_WORD(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_BYTE(crc, byte) _mm_crc32_u8((crc), (byte))
static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HARDWARE
#define CRC_WORD(crc, word) __crc32cd((crc), (word))
#define CRC_BYTE(crc, byte) __crc32cb((crc), (byte))
static int has_instruction(void) { return 1; }
#else
#define HARDWARE
#define CRC_WORD(crc, word) ((crc) + (uint32_t)(word))
#define CRC_BYTE(crc, byte) ((crc) + (byte))
static int has_instruction(void) { return 0; } /* then the module refuses to be imported */
#endif

enum { LONG_PART = 2048, SHORT_PART = 256 };
typedef uint32_t Shift[4][256]; /* what a checksum becomes when a part of zeros follows, by each of its bytes */
static Shift long_shift, short_shift;

HARDWARE static void prepare_shift(Shift shift, int part)
{
    memset(shift, 0, sizeof(Shift));
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = UINT32_C(1) << bit;
        for (int done = 0; done < part; done += 8)
            crc = CRC_WORD(crc, UINT64_C(0));
        for (int byte = 0; byte < 256; byte++)
            if (byte & (1 << (bit & 7)))
                shift[bit >> 3][byte] ^= crc;
    }
}

static uint32_t shifted(Shift shift, uint32_t crc)
{
    return shift[0][crc & 255] ^ shift[1][crc >> 8 & 255] ^ shift[2][crc >> 16 & 255] ^ shift[3][crc >> 24];
}

static uint64_t word_at(const Byte *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

HARDWARE static const Byte *crc_blocks(uint32_t *crc, const Byte *at, const Byte *end, Shift shift, int part)
{
    for (; end - at >= 3 * part; at += 3 * part) {
        uint32_t first = *crc, second = 0, third = 0;
        for (int done = 0; done < part; done += 8) {
            first = CRC_WORD(first, word_at(at + done));
            second = CRC_WORD(second, word_at(at + part + done));
            third = CRC_WORD(third, word_at(at + 2 * part + done));
        }
        *crc = shifted(shift, shifted(shift, first) ^ second) ^ third;
    }
    return at;
}

/* Of what `crc` covers and these bytes; both without the inversion at the end. */
HARDWARE static uint32_t crc_more(uint32_t crc, const Byte *at, const Byte *end)
{
    at = crc_blocks(&crc, at, end, long_shift, LONG_PART);
    at = crc_blocks(&crc, at, end, short_shift, SHORT_PART);
    for (; end - at >= 8; at += 8)
        crc = CRC_WORD(crc, word_at(at));
    for (; at < end; at++)
        crc = CRC_BYTE(crc, *at);
    return crc;
}

static uint32_t crc32c_of(const Byte *at, const Byte *end)
{
    return ~crc_more(UINT32_MAX, at, end);
}

/* ---- Reading and writing numbers */

typedef struct {
    const Byte *at, *end;
} Reader;

static uint32_t be32(const Byte *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* False where the data ends, and above 63 bits. */
static int read_number(Reader *reader, uint64_t *value)
{
    uint64_t found = 0;
    for (int shift = 0; shift < 63; shift += 7) {
        if (reader->at == reader->end)
            return 0;
        Byte byte = *reader->at++;
        found |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = found;
            return 1;
        }
    }
    return 0;
}

/* The bytes of a field whose tag has been read. */
static int read_part(Reader *reader, Reader *part)
{
    uint64_t size;
    if (!read_number(reader, &size) || size > (uint64_t)(reader->end - reader->at))
        return 0;
    part->at = reader->at;
    part->end = reader->at = reader->at + size;
    return 1;
}

static int skip_byte(Reader *reader, Byte expected)
{
    if (reader->at == reader->end || *reader->at != expected)
        return 0;
    reader->at++;
    return 1;
}

static Byte *put_number(Byte *at, uint64_t value)
{
    for (; value > 0x7F; value >>= 7)
        *at++ = (Byte)(value | 0x80);
    *at++ = (Byte)value;
    return at;
}

static Byte *put_be32(Byte *at, uint32_t value)
{
    *at++ = (Byte)(value >> 24);
    *at++ = (Byte)(value >> 16);
    *at++ = (Byte)(value >> 8);
    *at++ = (Byte)value;
    return at;
}

static int number_bytes(uint64_t value)
{
    int size = 1;
    for (; value > 0x7F; value >>= 7)
        size++;
    return size;
}

/* protobuf refuses what has no room with ValueError, and so does this. */
static int as_u64(PyObject *object, uint64_t *value)
{
    *value = PyLong_AsUnsignedLongLong(object);
    if (*value != UINT64_MAX || !PyErr_Occurred())
        return 1;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_SetString(PyExc_ValueError, "a number of the protocol has 64 bits and no sign");
    }
    return 0;
}

static int is_ascii(const Reader *text)
{
    const Byte *at = text->at;
    for (; text->end - at >= 8; at += 8)
        if (word_at(at) & UINT64_C(0x8080808080808080))
            return 0;
    for (; at < text->end; at++)
        if (*at & 0x80)
            return 0;
    return 1;
}

/* A part of `bytes`; the object lives as long as whoever holds it. */
static int bytes_of(PyObject *object, Reader *reader)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(object, &data, &size) < 0)
        return 0;
    reader->at = (const Byte *)data;
    reader->end = reader->at + size;
    return 1;
}

/* ---- split(data, frame_bytes_max, command_bytes_max) -> (frames, position) */

static PyObject *split(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Reader data;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "split takes 3 arguments");
    if (!bytes_of(args[0], &data))
        return NULL;
    uint64_t frame_max, command_max;
    if (!as_u64(args[1], &frame_max) || !as_u64(args[2], &command_max))
        return NULL;
    PyObject *frames = PyList_New(0);
    if (frames == NULL)
        return NULL;
    const Byte *start = data.at;
    while (data.end - data.at >= 8) {
        uint64_t total = be32(data.at), command = be32(data.at + 4);
        if (total > frame_max || command > command_max || command + 4 > total || total + 4 > (uint64_t)(data.end - data.at))
            break;
        PyObject *head = PyBytes_FromStringAndSize((const char *)data.at + 8, (Py_ssize_t)command);
        PyObject *rest = PyBytes_FromStringAndSize((const char *)data.at + 8 + command, (Py_ssize_t)(total - 4 - command));
        PyObject *frame = head != NULL && rest != NULL ? PyTuple_Pack(2, head, rest) : NULL;
        Py_XDECREF(head);
        Py_XDECREF(rest);
        if (frame == NULL || PyList_Append(frames, frame) < 0) {
            Py_XDECREF(frame);
            Py_DECREF(frames);
            return NULL;
        }
        Py_DECREF(frame);
        data.at += 4 + total;
    }
    PyObject *found = Py_BuildValue("(On)", frames, (Py_ssize_t)(data.at - start));
    Py_DECREF(frames);
    return found;
}

/* ---- Metadata of a message */

typedef struct {
    Reader producer_name, partition_key, ordering_key;
    uint64_t sequence_id, publish_time, deliver_at;
    uint32_t messages;
    int batched, encoded_key, has_partition_key, has_ordering_key;
    uint64_t asks; /* a bit for each kind of property that asks for a trace */
} Metadata;

static int is_text(const Reader *text, const char *expected)
{
    size_t size = (size_t)(text->end - text->at);
    return size == strlen(expected) && memcmp(text->at, expected, size) == 0;
}

enum { LOOK_FOR_TRACES = 1, LOOK_FOR_SPANS = 2 };

static int read_pair(Reader pair, uint64_t *asks)
{
    int seen = 0;
    Reader key = {NULL, NULL};
    while (pair.at < pair.end) {
        Byte tag = *pair.at++;
        Reader text;
        if ((tag != 0x0A && tag != 0x12) || !read_part(&pair, &text) || !is_ascii(&text))
            return 0;
        seen |= tag == 0x0A ? 1 : 2;
        if (tag == 0x0A)
            key = text;
    }
    if (seen == 3 && (is_text(&key, "magnetar.trace") || is_text(&key, "magnetar.trace.only")))
        *asks |= LOOK_FOR_TRACES;
    else if (seen == 3 && is_text(&key, "traceparent"))
        *asks |= LOOK_FOR_SPANS;
    return seen == 3;
}

/* True for metadata of which every field is known here and none makes the message a special one. Texts are ASCII: others are left to
   protobuf, which knows what is UTF-8. */
static int read_metadata(Reader data, Metadata *found)
{
    int seen = 0;
    uint64_t value = 0;
    Reader part = {NULL, NULL};
    memset(found, 0, sizeof *found);
    found->messages = 1;
    while (data.at < data.end) {
        uint64_t tag;
        if (!read_number(&data, &tag) || tag > 1000)
            return 0;
        if ((tag & 7) == 0 ? !read_number(&data, &value) : (tag & 7) != 2 || !read_part(&data, &part))
            return 0;
        switch (tag) {
        case 1 << 3 | 2: /* producer_name */
            if (!is_ascii(&part))
                return 0;
            found->producer_name = part, seen |= 1;
            break;
        case 2 << 3:
            found->sequence_id = value, seen |= 2;
            break;
        case 3 << 3:
            found->publish_time = value, seen |= 4;
            break;
        case 4 << 3 | 2: /* properties */
            if (!read_pair(part, &found->asks))
                return 0;
            break;
        case 6 << 3 | 2:
            if (!is_ascii(&part))
                return 0;
            found->partition_key = part, found->has_partition_key = 1;
            break;
        case 8 << 3: /* compression: what it claims is looked at elsewhere */
            if (value != 0)
                return 0;
            break;
        case 11 << 3: /* num_messages_in_batch */
            if (value < 1 || value > INT32_MAX)
                return 0;
            found->messages = (uint32_t)value, found->batched = 1;
            break;
        case 17 << 3:
            found->encoded_key = value != 0;
            break;
        case 18 << 3 | 2:
            found->ordering_key = part, found->has_ordering_key = 1;
            break;
        case 19 << 3:
            found->deliver_at = value;
            break;
        case 9 << 3: /* uncompressed_size */
        case 12 << 3: /* event_time */
        case 16 << 3 | 2: /* schema_version */
        case 24 << 3: /* highest_sequence_id */
        case 25 << 3: /* null_value */
        case 30 << 3: /* null_partition_key */
            break;
        default: /* transactions, chunks, encryption, markers, other clusters, what is not known */
            return 0;
        }
    }
    return seen == 7;
}

/* The metadata and payload of an entry with a checksum. */
static int entry_parts(Reader entry, Reader *metadata, Reader *payload)
{
    if (entry.end - entry.at < 10 || entry.at[0] != 0x0E || entry.at[1] != 0x01)
        return 0;
    uint64_t size = be32(entry.at + 6);
    if (size > 65536 || size > (uint64_t)(entry.end - entry.at - 10))
        return 0;
    metadata->at = entry.at + 10;
    metadata->end = payload->at = metadata->at + size;
    payload->end = entry.end;
    return 1;
}

enum { BATCHED_MESSAGE_BYTES_MIN = 6 };

/* ---- plain_sends(frames, producer_id, entries_max, bytes_max, own_name, batch_messages_max, looks_for)
        -> (entries, sequence_ids, highest_sequence_ids, messages, sizes) */

typedef struct {
    uint64_t producer_id, sequence_id, highest_sequence_id;
} Send;

static int read_send(Reader command, Send *send)
{
    uint64_t ignored, is_chunk = 0;
    Py_ssize_t size = command.end - command.at;
    if (size < 5 || size > 131 || memcmp(command.at, "\x08\x06\x32", 3) != 0 || command.at[3] + 4 != size)
        return 0;
    command.at += 4;
    send->highest_sequence_id = 0;
    if (!skip_byte(&command, 0x08) || !read_number(&command, &send->producer_id))
        return 0;
    if (!skip_byte(&command, 0x10) || !read_number(&command, &send->sequence_id))
        return 0;
    if (skip_byte(&command, 0x18) && !read_number(&command, &ignored))
        return 0;
    if (skip_byte(&command, 0x30) && !read_number(&command, &send->highest_sequence_id))
        return 0;
    if (skip_byte(&command, 0x38) && !read_number(&command, &is_chunk))
        return 0;
    return command.at == command.end && !is_chunk;
}

static int entry_is_plain(Reader entry, const Reader *own_name, uint64_t batch_max, uint64_t looks_for, uint32_t *messages)
{
    Metadata found;
    Reader metadata, payload;
    if (!entry_parts(entry, &metadata, &payload) || !read_metadata(metadata, &found) || (found.asks & looks_for))
        return 0;
    if (found.messages != 1) {
        uint64_t most = (uint64_t)(payload.end - payload.at) / BATCHED_MESSAGE_BYTES_MIN;
        if (found.messages > most || found.messages > batch_max)
            return 0;
    }
    if (own_name->at != NULL) {
        Py_ssize_t size = own_name->end - own_name->at;
        Reader name = found.producer_name;
        if (name.end - name.at != size || memcmp(name.at, own_name->at, (size_t)size) != 0)
            return 0;
    }
    *messages = found.messages;
    return crc32c_of(entry.at + 6, entry.end) == be32(entry.at + 2);
}

static int append(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return !failed;
}

static PyObject *plain_sends(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 7)
        return PyErr_Format(PyExc_TypeError, "plain_sends takes 7 arguments");
    uint64_t producer_id, batch_max, looks_for;
    if (!as_u64(args[1], &producer_id) || !as_u64(args[5], &batch_max) || !as_u64(args[6], &looks_for))
        return NULL;
    Py_ssize_t entries_left = PyLong_AsSsize_t(args[2]), bytes_left = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    Reader own_name = {NULL, NULL};
    if (args[4] != Py_None) {
        Py_ssize_t size;
        own_name.at = (const Byte *)PyUnicode_AsUTF8AndSize(args[4], &size);
        if (own_name.at == NULL)
            return NULL;
        own_name.end = own_name.at + size;
    }
    PyObject *popleft = PyObject_GetAttrString(args[0], "popleft"), *found = NULL;
    PyObject *columns[5] = {PyList_New(0), PyList_New(0), PyList_New(0), PyList_New(0), PyList_New(0)};
    int failed = popleft == NULL || !columns[0] || !columns[1] || !columns[2] || !columns[3] || !columns[4];
    Py_ssize_t frames_left = failed ? 0 : PyObject_Length(args[0]);
    for (; !failed && frames_left > 0; frames_left--) {
        PyObject *frame = PySequence_GetItem(args[0], 0);
        Reader command, entry;
        Send send;
        uint32_t messages;
        if (frame == NULL || PyTuple_Size(frame) != 2 || !bytes_of(PyTuple_GetItem(frame, 0), &command) ||
            !bytes_of(PyTuple_GetItem(frame, 1), &entry)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a frame is a command and the rest");
            failed = 1;
        } else if (!read_send(command, &send) || send.producer_id != producer_id ||
                   !entry_is_plain(entry, &own_name, batch_max, looks_for, &messages)) {
            Py_DECREF(frame);
            break;
        } else {
            Py_ssize_t size = entry.end - entry.at;
            PyObject *popped = PyObject_CallNoArgs(popleft), *rest = PyTuple_GetItem(frame, 1);
            Py_XINCREF(rest);
            failed = popped == NULL;
            Py_XDECREF(popped);
            failed = !append(columns[0], rest) || failed;
            failed = failed || !append(columns[1], PyLong_FromUnsignedLongLong(send.sequence_id));
            failed = failed || !append(columns[2], PyLong_FromUnsignedLongLong(send.highest_sequence_id));
            failed = failed || !append(columns[3], PyLong_FromUnsignedLong(messages));
            failed = failed || !append(columns[4], PyLong_FromSsize_t(size));
            entries_left--;
            bytes_left -= size;
        }
        Py_XDECREF(frame);
        if (!failed && (entries_left <= 0 || bytes_left <= 0))
            break;
    }
    if (!failed && frames_left >= 0)
        found = PyTuple_Pack(5, columns[0], columns[1], columns[2], columns[3], columns[4]);
    for (int column = 0; column < 5; column++)
        Py_XDECREF(columns[column]);
    Py_XDECREF(popleft);
    return found;
}

/* ---- send_receipts(producer_id, sequence_ids, highest_sequence_ids, ledger_id, entry_id) -> bytes */

enum { RECEIPT_BYTES_MAX = 72 };

static Byte *put_receipt(Byte *at, uint64_t producer_id, uint64_t sequence_id, uint64_t highest, uint64_t ledger_id, uint64_t entry_id)
{
    int id_size = 2 + number_bytes(ledger_id) + number_bytes(entry_id);
    int size = 3 + number_bytes(producer_id) + number_bytes(sequence_id) + number_bytes(highest) + 2 + id_size;
    at = put_be32(at, (uint32_t)(4 + 3 + size + 1));
    at = put_be32(at, (uint32_t)(3 + size + 1));
    *at++ = 0x08, *at++ = 0x07, *at++ = 0x3A, *at++ = (Byte)size;
    *at++ = 0x08, at = put_number(at, producer_id);
    *at++ = 0x10, at = put_number(at, sequence_id);
    *at++ = 0x1A, *at++ = (Byte)id_size;
    *at++ = 0x08, at = put_number(at, ledger_id);
    *at++ = 0x10, at = put_number(at, entry_id);
    *at++ = 0x20, at = put_number(at, highest);
    return at;
}

static PyObject *send_receipts(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "send_receipts takes 5 arguments");
    uint64_t producer_id, ledger_id, entry_id;
    if (!as_u64(args[0], &producer_id) || !as_u64(args[3], &ledger_id) || !as_u64(args[4], &entry_id))
        return NULL;
    Py_ssize_t entries = PyList_Size(args[1]), others = PyList_Size(args[2]);
    if (entries < 0 || others < 0)
        return NULL;
    if (entries != others || entries > PY_SSIZE_T_MAX / RECEIPT_BYTES_MAX || (entries > 1 && entry_id > UINT64_MAX - (uint64_t)(entries - 1)))
        return PyErr_Format(PyExc_ValueError, "receipts need a place and a highest sequence id for each sequence id");
    Byte *buffer = PyMem_Malloc((size_t)entries * RECEIPT_BYTES_MAX + 1), *at = buffer;
    if (buffer == NULL)
        return PyErr_NoMemory();
    PyObject *found = NULL;
    for (Py_ssize_t index = 0; index < entries; index++) {
        uint64_t sequence_id, highest;
        PyObject *one = PyList_GetItem(args[1], index), *other = PyList_GetItem(args[2], index);
        if (one == NULL || other == NULL || !as_u64(one, &sequence_id) || !as_u64(other, &highest))
            goto end;
        at = put_receipt(at, producer_id, sequence_id, highest, ledger_id, entry_id + (uint64_t)index);
    }
    found = PyBytes_FromStringAndSize((const char *)buffer, at - buffer);
end:
    PyMem_Free(buffer);
    return found;
}

/* ---- plain_acks(frames, frames_max, ids_max) -> (consumer_id, ids, frames taken) or None */

/* Ids are appended. 1: plain; 0: not, and nothing was appended that counts; -1: an error is set. */
static int read_ack(Reader command, uint64_t *consumer_id, PyObject *ids)
{
    uint64_t size, ledger_id, entry_id, ignored;
    if (command.end - command.at < 5 || memcmp(command.at, "\x08\x0A\x52", 3) != 0)
        return 0;
    command.at += 3;
    if (!read_number(&command, &size) || size != (uint64_t)(command.end - command.at))
        return 0;
    if (!skip_byte(&command, 0x08) || !read_number(&command, consumer_id))
        return 0;
    if (!skip_byte(&command, 0x10) || !skip_byte(&command, 0x00) || command.at == command.end)
        return 0;
    while (command.at < command.end) {
        if (command.end - command.at < 2 || command.at[0] != 0x1A || command.at[1] > 127)
            return 0;
        if (command.at[1] > command.end - command.at - 2)
            return 0;
        Reader id = {command.at + 2, command.at + 2 + command.at[1]};
        command.at = id.end;
        if (!skip_byte(&id, 0x08) || !read_number(&id, &ledger_id) || !skip_byte(&id, 0x10) || !read_number(&id, &entry_id))
            return 0;
        if (skip_byte(&id, 0x18) && !read_number(&id, &ignored))
            return 0;
        if (id.at != id.end)
            return 0;
        if (!append(ids, Py_BuildValue("(KKOi)", (unsigned long long)ledger_id, (unsigned long long)entry_id, Py_None, 0)))
            return -1;
    }
    return 1;
}

static PyObject *plain_acks(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "plain_acks takes 3 arguments");
    Py_ssize_t frames_max = PyLong_AsSsize_t(args[1]), ids_max = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *popleft = PyObject_GetAttrString(args[0], "popleft"), *ids = PyList_New(0), *found = NULL;
    int failed = popleft == NULL || ids == NULL;
    Py_ssize_t frames_left = failed ? 0 : PyObject_Length(args[0]), taken = 0;
    uint64_t consumer_id = 0, other;
    while (!failed && frames_left-- > 0 && (taken == 0 || (taken < frames_max && PyList_Size(ids) < ids_max))) {
        PyObject *frame = PySequence_GetItem(args[0], 0);
        Py_ssize_t before = PyList_Size(ids);
        Reader command;
        int plain = -1;
        if (frame != NULL && PyTuple_Size(frame) == 2 && bytes_of(PyTuple_GetItem(frame, 0), &command))
            plain = read_ack(command, &other, ids);
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a frame is a command and the rest");
        Py_XDECREF(frame);
        failed = plain < 0;
        if (plain > 0 && (taken == 0 || other == consumer_id)) {
            PyObject *popped = PyObject_CallNoArgs(popleft);
            failed = popped == NULL;
            Py_XDECREF(popped);
            consumer_id = other;
            taken++;
        } else if (!failed) {
            failed = PyList_SetSlice(ids, before, PyList_Size(ids), NULL) < 0; /* of the frame that stays */
            break;
        }
    }
    if (!failed && !PyErr_Occurred()) {
        if (taken)
            found = Py_BuildValue("(KOn)", (unsigned long long)consumer_id, ids, taken);
        else
            found = Py_NewRef(Py_None);
    }
    Py_XDECREF(popleft);
    Py_XDECREF(ids);
    return found;
}

/* ---- message_pieces(consumer_id, partition, entries, pieces) -> bytes added */

static PyObject *str_ledger_id, *str_entry_id, *str_data;

enum { HEAD_BYTES_MAX = 72 };

static Byte *put_head(Byte *at, uint64_t consumer_id, int64_t partition, uint64_t ledger_id, uint64_t entry_id, uint64_t data_bytes)
{
    int id_size = 2 + number_bytes(ledger_id) + number_bytes(entry_id) + (partition < 0 ? 0 : 1 + number_bytes((uint64_t)partition));
    int size = 1 + number_bytes(consumer_id) + 2 + id_size;
    at = put_be32(at, (uint32_t)(4 + 4 + size + data_bytes));
    at = put_be32(at, (uint32_t)(4 + size));
    *at++ = 0x08, *at++ = 0x09, *at++ = 0x4A, *at++ = (Byte)size;
    *at++ = 0x08, at = put_number(at, consumer_id);
    *at++ = 0x12, *at++ = (Byte)id_size;
    *at++ = 0x08, at = put_number(at, ledger_id);
    *at++ = 0x10, at = put_number(at, entry_id);
    if (partition >= 0)
        *at++ = 0x18, at = put_number(at, (uint64_t)partition);
    return at;
}

/* A new reference to what a client may see of an entry's data: without the broker's own part. */
static PyObject *visible(PyObject *data)
{
    Reader reader;
    if (!bytes_of(data, &reader))
        return NULL;
    uint64_t size = (uint64_t)(reader.end - reader.at);
    if (size < 2 || reader.at[0] != 0x0E || reader.at[1] != 0x02)
        return Py_NewRef(data);
    uint64_t skipped = size < 6 ? size : 6 + (uint64_t)be32(reader.at + 2);
    if (skipped > size)
        skipped = size;
    return PyBytes_FromStringAndSize((const char *)reader.at + skipped, (Py_ssize_t)(size - skipped));
}

static Py_ssize_t add_message(uint64_t consumer_id, int64_t partition, PyObject *entry, PyObject *pieces)
{
    PyObject *ledger = PyObject_GetAttr(entry, str_ledger_id), *number = PyObject_GetAttr(entry, str_entry_id);
    PyObject *whole = PyObject_GetAttr(entry, str_data), *data = whole != NULL ? visible(whole) : NULL;
    Py_ssize_t added = -1;
    uint64_t ledger_id, entry_id;
    if (ledger != NULL && number != NULL && data != NULL && as_u64(ledger, &ledger_id) && as_u64(number, &entry_id)) {
        Byte head[HEAD_BYTES_MAX];
        Py_ssize_t size = PyBytes_Size(data);
        if (size > UINT32_MAX - HEAD_BYTES_MAX) {
            PyErr_SetString(PyExc_OverflowError, "an entry does not fit a frame");
        } else {
            Byte *end = put_head(head, consumer_id, partition, ledger_id, entry_id, (uint64_t)size);
            if (append(pieces, PyBytes_FromStringAndSize((const char *)head, end - head)) && PyList_Append(pieces, data) == 0)
                added = (end - head) + size;
        }
    }
    Py_XDECREF(ledger);
    Py_XDECREF(number);
    Py_XDECREF(whole);
    Py_XDECREF(data);
    return added;
}

static PyObject *message_pieces(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t consumer_id;
    if (count != 4 || !PyList_Check(args[2]) || !PyList_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "message_pieces takes two numbers and two lists");
    if (!as_u64(args[0], &consumer_id))
        return NULL;
    int64_t partition = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t total = 0;
    for (Py_ssize_t index = 0; index < PyList_Size(args[2]); index++) {
        PyObject *entry = Py_NewRef(PyList_GetItem(args[2], index));
        Py_ssize_t added = add_message(consumer_id, partition, entry, args[3]);
        Py_DECREF(entry);
        if (added < 0)
            return NULL;
        total += added;
    }
    return PyLong_FromSsize_t(total);
}

/* ---- stored_metadata(data, batch_messages_max) -> (messages, batched, publish time, due time, -1, key) or None */

enum { PRODUCER_NAME_BYTES_MAX = 256, KEY_ROOM = PRODUCER_NAME_BYTES_MAX + 24 };

/* By what Key_Shared hashes: a part of the entry, or of `room`, where the name of the message is written if it has no key. */
static Reader key_of(const Metadata *found, Byte room[KEY_ROOM])
{
    if (found->has_ordering_key && found->ordering_key.end > found->ordering_key.at)
        return found->ordering_key;
    if (found->has_partition_key && found->partition_key.end > found->partition_key.at)
        return found->partition_key;
    Reader key = {room, room};
    if (found->has_ordering_key || found->has_partition_key)
        return key;
    Py_ssize_t size = found->producer_name.end - found->producer_name.at;
    Byte *at = room + size, digits[24];
    int length = 0;
    memcpy(room, found->producer_name.at, (size_t)size); /* its length has been looked at */
    *at++ = '-';
    for (uint64_t left = found->sequence_id; left || !length; left /= 10)
        digits[length++] = (Byte)('0' + left % 10);
    while (length)
        *at++ = digits[--length];
    key.end = at;
    return key;
}

static int has_readable_key(const Metadata *found)
{
    return !found->encoded_key && found->producer_name.end - found->producer_name.at <= PRODUCER_NAME_BYTES_MAX;
}

static PyObject *stored_metadata(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Reader data, metadata, payload;
    Metadata found;
    uint64_t batch_max;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "stored_metadata takes 2 arguments");
    if (!bytes_of(args[0], &data) || !as_u64(args[1], &batch_max))
        return NULL;
    if (!entry_parts(data, &metadata, &payload) || !read_metadata(metadata, &found) || !has_readable_key(&found))
        return Py_NewRef(Py_None);
    uint64_t most = (uint64_t)(payload.end - payload.at) / BATCHED_MESSAGE_BYTES_MIN, messages = found.messages;
    most = most > batch_max ? batch_max : most;
    if (messages != 1)
        messages = messages > most ? (most ? most : 1) : messages;
    Byte room[KEY_ROOM];
    Reader key = key_of(&found, room);
    return Py_BuildValue("(KOKKiy#)", (unsigned long long)messages, found.batched ? Py_True : Py_False,
                         (unsigned long long)found.publish_time, (unsigned long long)found.deliver_at, -1, (const char *)key.at,
                         (Py_ssize_t)(key.end - key.at));
}

/* ---- held_values(entries, keyed) -> a number for each entry */

static uint32_t rotated(uint32_t value, int bits)
{
    return value << bits | value >> (32 - bits);
}

/* Murmur3 x86 32-bit, seed 0. */
static uint32_t murmur3_of(Reader key)
{
    uint32_t hash = 0, size = (uint32_t)(key.end - key.at), rest = 0;
    for (; key.end - key.at >= 4; key.at += 4) {
        uint32_t word = (uint32_t)key.at[0] | (uint32_t)key.at[1] << 8 | (uint32_t)key.at[2] << 16 | (uint32_t)key.at[3] << 24;
        hash ^= rotated(word * UINT32_C(0xCC9E2D51), 15) * UINT32_C(0x1B873593);
        hash = rotated(hash, 13) * 5 + UINT32_C(0xE6546B64);
    }
    for (Py_ssize_t left = key.end - key.at; left > 0; left--)
        rest = rest << 8 | key.at[left - 1];
    hash ^= rotated(rest * UINT32_C(0xCC9E2D51), 15) * UINT32_C(0x1B873593);
    hash ^= size;
    hash = (hash ^ hash >> 16) * UINT32_C(0x85EBCA6B);
    hash = (hash ^ hash >> 13) * UINT32_C(0xC2B2AE35);
    return hash ^ hash >> 16;
}

enum { SLOT_BITS = 16, NOT_PLAIN = -1 };

static long held_value(Reader data, int keyed)
{
    Reader metadata, payload;
    Metadata found;
    if (!entry_parts(data, &metadata, &payload) || !read_metadata(metadata, &found) || found.batched || found.deliver_at)
        return NOT_PLAIN;
    if (!keyed)
        return 1L << SLOT_BITS;
    if (!has_readable_key(&found))
        return NOT_PLAIN;
    Byte room[KEY_ROOM];
    uint32_t slot = murmur3_of(key_of(&found, room)) & ((1 << SLOT_BITS) - 1);
    return 1L << SLOT_BITS | (long)(slot ? slot : 1);
}

static PyObject *held_values(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "held_values takes a list and whether there are keys");
    int keyed = PyObject_IsTrue(args[1]);
    PyObject *values = keyed < 0 ? NULL : PyList_New(0);
    for (Py_ssize_t index = 0; values != NULL && index < PyList_Size(args[0]); index++) {
        PyObject *entry = Py_NewRef(PyList_GetItem(args[0], index)), *data = PyObject_GetAttr(entry, str_data);
        Reader reader;
        if (data == NULL || !bytes_of(data, &reader) || !append(values, PyLong_FromLong(held_value(reader, keyed))))
            Py_CLEAR(values);
        Py_XDECREF(data);
        Py_DECREF(entry);
    }
    return values;
}

/* ---- pack_run(ledger_id, first_entry_id, lac, length, payloads) -> (packed entries, length)
   What a bookie stores, with CRC32C: `bookkeeper/entry_format.py`. */

enum { ENTRY_IDS_BYTES = 32, ENTRY_HEAD_BYTES = ENTRY_IDS_BYTES + 4 };

static int as_i64(PyObject *object, int64_t *value)
{
    *value = PyLong_AsLongLong(object);
    return *value != -1 || !PyErr_Occurred();
}

static Byte *put_be64(Byte *at, uint64_t value)
{
    return put_be32(put_be32(at, (uint32_t)(value >> 32)), (uint32_t)value);
}

static uint64_t be64(const Byte *at)
{
    return (uint64_t)be32(at) << 32 | be32(at + 4);
}

static PyObject *pack_run(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t ledger_id, entry_id, lac, length;
    if (count != 5 || !PyList_Check(args[4]))
        return PyErr_Format(PyExc_TypeError, "pack_run takes four numbers and a list");
    if (!as_i64(args[0], &ledger_id) || !as_i64(args[1], &entry_id) || !as_i64(args[2], &lac) || !as_i64(args[3], &length))
        return NULL;
    PyObject *packed = PyList_New(0), *found = NULL;
    for (Py_ssize_t index = 0; packed != NULL && index < PyList_Size(args[4]); index++) {
        Reader payload;
        PyObject *entry = NULL;
        if (bytes_of(PyList_GetItem(args[4], index), &payload))
            entry = PyBytes_FromStringAndSize(NULL, ENTRY_HEAD_BYTES + (payload.end - payload.at));
        if (entry != NULL) {
            Byte *start = (Byte *)PyBytes_AsString(entry);
            length += payload.end - payload.at;
            Byte *at = put_be64(put_be64(start, (uint64_t)ledger_id), (uint64_t)entry_id + (uint64_t)index);
            at = put_be64(put_be64(at, (uint64_t)lac), (uint64_t)length);
            at = put_be32(at, ~crc_more(crc_more(UINT32_MAX, start, at), payload.at, payload.end));
            memcpy(at, payload.at, (size_t)(payload.end - payload.at));
        }
        if (!append(packed, entry))
            Py_CLEAR(packed);
    }
    if (packed != NULL)
        found = Py_BuildValue("(OL)", packed, (long long)length);
    Py_XDECREF(packed);
    return found;
}

/* ---- highest_lac(ledger_id, entry_ids, entries, entry_bytes_max) -> LAC, at least -1; or None: one is not the entry it should be */

enum { ENTRY_BYTES_MIN = 24 };

static PyObject *highest_lac(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t ledger_id, entry_id, entry_max, highest = -1;
    if (count != 4 || !PyList_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "highest_lac takes a number, ids, a list of entries and a number");
    if (!as_i64(args[0], &ledger_id) || !as_i64(args[3], &entry_max))
        return NULL;
    Py_ssize_t entries = PyList_Size(args[2]), ids = PySequence_Size(args[1]);
    if (ids != entries)
        return ids < 0 ? NULL : PyErr_Format(PyExc_ValueError, "there is an id for each entry");
    for (Py_ssize_t index = 0; index < entries; index++) {
        Reader entry;
        PyObject *number = PySequence_GetItem(args[1], index), *data = PyList_GetItem(args[2], index);
        int failed = number == NULL || data == NULL || !as_i64(number, &entry_id) || !bytes_of(data, &entry);
        Py_XDECREF(number);
        if (failed)
            return NULL;
        int64_t size = entry.end - entry.at;
        if (size < ENTRY_BYTES_MIN || size > entry_max)
            return Py_NewRef(Py_None);
        if ((int64_t)be64(entry.at) != ledger_id || (int64_t)be64(entry.at + 8) != entry_id)
            return Py_NewRef(Py_None);
        int64_t lac = (int64_t)be64(entry.at + 16);
        highest = lac > highest ? lac : highest;
    }
    return PyLong_FromLongLong(highest);
}

/* ---- record_headers(entries) -> the header of each in an entry log: `bookkeeper/bookie/storage/entry_log_format.py` */

static PyObject *record_headers(PyObject *module, PyObject *entries)
{
    if (!PyList_Check(entries))
        return PyErr_Format(PyExc_TypeError, "record_headers takes a list");
    PyObject *headers = PyList_New(0);
    for (Py_ssize_t index = 0; headers != NULL && index < PyList_Size(entries); index++) {
        Reader entry;
        PyObject *header = NULL;
        Byte made[8];
        if (bytes_of(PyList_GetItem(entries, index), &entry)) {
            put_be32(made + 4, (uint32_t)(entry.end - entry.at));
            put_be32(made, ~crc_more(crc_more(UINT32_MAX, made + 4, made + 8), entry.at, entry.end));
            header = PyBytes_FromStringAndSize((const char *)made, 8);
        }
        if (!append(headers, header))
            Py_CLEAR(headers);
    }
    return headers;
}

/* ---- cut_adds(data, position, entries_max, bytes_max, entry_bytes_min, entry_bytes_max)
        -> (flags, master key, ledger id, entry ids, packed entries, position) or None
   Frames of adds of version 2 of the bookie protocol: `wire/bookkeeper/v2.py`. */

enum { ADD_HEAD_BYTES = 24, ADD_IDS_END = 44, PLAIN_ADD = 0x0201 };

static PyObject *cut_adds(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Reader data;
    int64_t position, entries_max, bytes_max, entry_min, entry_max;
    if (count != 6)
        return PyErr_Format(PyExc_TypeError, "cut_adds takes 6 arguments");
    if (!bytes_of(args[0], &data) || !as_i64(args[1], &position) || !as_i64(args[2], &entries_max) || !as_i64(args[3], &bytes_max))
        return NULL;
    if (!as_i64(args[4], &entry_min) || !as_i64(args[5], &entry_max))
        return NULL;
    if (position < 0 || position > data.end - data.at)
        return PyErr_Format(PyExc_ValueError, "the position is not one of the data");
    const Byte *start = data.at, *first = NULL;
    data.at += position;
    PyObject *ids = PyList_New(0), *entries = PyList_New(0), *found = NULL;
    int failed = ids == NULL || entries == NULL;
    int64_t taken = 0, size = 0, last = -1;
    while (!failed && taken < entries_max && size < bytes_max && data.end - data.at >= ADD_IDS_END) {
        int64_t entry_bytes = (int64_t)be32(data.at) - ADD_HEAD_BYTES, entry_id = (int64_t)be64(data.at + 36);
        if (be32(data.at + 4) >> 16 != PLAIN_ADD || entry_bytes < entry_min || entry_bytes > entry_max)
            break;
        if (entry_bytes > data.end - data.at - (4 + ADD_HEAD_BYTES) || entry_id <= last)
            break;
        if (first == NULL ? data.at[28] & 0x80 : memcmp(first + 4, data.at + 4, 32) != 0)
            break; /* a ledger below zero; or another header, key or ledger */
        if (first == NULL)
            first = data.at;
        data.at += 4 + ADD_HEAD_BYTES;
        failed = !append(ids, PyLong_FromLongLong(entry_id));
        failed = failed || !append(entries, PyBytes_FromStringAndSize((const char *)data.at, (Py_ssize_t)entry_bytes));
        data.at += entry_bytes;
        size += entry_bytes;
        last = entry_id;
        taken++;
    }
    if (!failed && first == NULL)
        found = Py_NewRef(Py_None);
    else if (!failed)
        found = Py_BuildValue("(iy#LOOn)", (int)(be32(first + 4) & 0xFFFF), (const char *)first + 8, (Py_ssize_t)20,
                              (long long)be64(first + 28), ids, entries, (Py_ssize_t)(data.at - start));
    Py_XDECREF(ids);
    Py_XDECREF(entries);
    return found;
}

/* ---- batch_places(data, place, count) -> (starts, ends, key starts, key ends in one, the place behind, whether there are keys) or None */

enum { KEY_BYTES_BELOW = 0x80, PAYLOAD_BYTES_BELOW = 0x200000 };

/* A message whose metadata is a key, a size and a sequence id, of which only the size must be there. */
static int plain_message(const Byte *data, Reader *batch, int64_t places[4])
{
    uint64_t size, number;
    if (batch->end - batch->at < 4)
        return 0;
    uint64_t header = be32(batch->at);
    batch->at += 4;
    if (header > (uint64_t)(batch->end - batch->at))
        return 0;
    Reader single = {batch->at, batch->at + header}, key = {data, data};
    if (skip_byte(&single, 0x12) && (!read_part(&single, &key) || key.end - key.at >= KEY_BYTES_BELOW))
        return 0;
    if (!skip_byte(&single, 0x18) || !read_number(&single, &size) || size >= PAYLOAD_BYTES_BELOW)
        return 0;
    if (skip_byte(&single, 0x40) && !read_number(&single, &number))
        return 0;
    batch->at = single.end;
    if (single.at != single.end || size > (uint64_t)(batch->end - batch->at))
        return 0;
    places[0] = batch->at - data;
    batch->at += size;
    places[1] = batch->at - data;
    places[2] = key.at - data;
    places[3] = key.end - data;
    return 1;
}

static PyObject *batch_places(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Reader batch;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "batch_places takes 3 arguments");
    Py_ssize_t place = PyLong_AsSsize_t(args[1]), messages = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred() || !bytes_of(args[0], &batch))
        return NULL;
    const Byte *data = batch.at;
    /* Six bytes at least each: so what is allocated is in proportion to what came. */
    if (place < 0 || place > batch.end - data || messages <= 0 || messages > (batch.end - data - place) / BATCHED_MESSAGE_BYTES_MIN)
        return Py_NewRef(Py_None);
    batch.at = data + place;
    PyObject *found = PyBytes_FromStringAndSize(NULL, 4 * messages * (Py_ssize_t)sizeof(int64_t)), *answer = NULL;
    int64_t *columns = found != NULL ? (int64_t *)(void *)PyBytes_AsString(found) : NULL, places[4];
    int keyed = 0, plain = found != NULL;
    for (Py_ssize_t index = 0; plain && index < messages; index++) {
        plain = plain_message(data, &batch, places);
        for (int column = 0; plain && column < 4; column++)
            memcpy(columns + column * messages + index, places + column, sizeof(int64_t));
        keyed |= plain && places[2] != places[3];
    }
    if (plain)
        answer = Py_BuildValue("(OnO)", found, (Py_ssize_t)(batch.at - data), keyed ? Py_True : Py_False);
    else if (found != NULL)
        answer = Py_NewRef(Py_None);
    Py_XDECREF(found);
    return answer;
}

/* ---- gathered(pieces) -> (offsets, bytes behind each other); a piece is (data, starts, ends) */

typedef struct {
    PyObject *owner;
    Reader data;
    Py_buffer starts, ends;
    Py_ssize_t count;
} Piece;

static int64_t number_of(const Py_buffer *numbers, Py_ssize_t index)
{
    int64_t number;
    memcpy(&number, (const Byte *)numbers->buf + index * (Py_ssize_t)sizeof(int64_t), sizeof(int64_t));
    return number;
}

static void close_piece(Piece *piece)
{
    PyBuffer_Release(&piece->starts);
    PyBuffer_Release(&piece->ends);
    Py_XDECREF(piece->owner);
}

/* The tuple is kept, so that its bytes stay. */
static int open_piece(PyObject *pieces, Py_ssize_t index, Piece *piece)
{
    memset(piece, 0, sizeof(Piece));
    piece->owner = Py_NewRef(PyList_GetItem(pieces, index));
    if (!PyTuple_Check(piece->owner) || PyTuple_Size(piece->owner) != 3) {
        PyErr_SetString(PyExc_TypeError, "a piece is data, starts and ends");
    } else if (bytes_of(PyTuple_GetItem(piece->owner, 0), &piece->data) &&
               PyObject_GetBuffer(PyTuple_GetItem(piece->owner, 1), &piece->starts, PyBUF_SIMPLE) == 0 &&
               PyObject_GetBuffer(PyTuple_GetItem(piece->owner, 2), &piece->ends, PyBUF_SIMPLE) == 0) {
        piece->count = piece->starts.len / (Py_ssize_t)sizeof(int64_t);
        if (piece->starts.len == piece->ends.len && piece->starts.len % (Py_ssize_t)sizeof(int64_t) == 0)
            return 1;
        PyErr_SetString(PyExc_ValueError, "starts and ends are as many numbers of 64 bits");
    }
    close_piece(piece);
    return 0;
}

/* Adds a piece's lengths to the offsets, whose last one is `total` so far; the new total, or -1. */
static int64_t add_offsets(const Piece *piece, Byte *offsets, int64_t total)
{
    for (Py_ssize_t index = 0; index < piece->count; index++) {
        int64_t start = number_of(&piece->starts, index), end = number_of(&piece->ends, index);
        if (start < 0 || start > end || end > piece->data.end - piece->data.at) {
            PyErr_SetString(PyExc_ValueError, "a piece reaches beyond its data");
            return -1;
        }
        total += end - start;
        if (total > INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "the bytes do not fit a column");
            return -1;
        }
        int32_t offset = (int32_t)total;
        memcpy(offsets + index * (Py_ssize_t)sizeof(int32_t), &offset, sizeof(int32_t));
    }
    return total;
}

static Byte *copy_piece(const Piece *piece, Byte *at)
{
    for (Py_ssize_t index = 0; index < piece->count; index++) {
        int64_t start = number_of(&piece->starts, index), size = number_of(&piece->ends, index) - start;
        memcpy(at, piece->data.at + start, (size_t)size);
        at += size;
    }
    return at;
}

static PyObject *gathered(PyObject *module, PyObject *pieces)
{
    if (!PyList_Check(pieces))
        return PyErr_Format(PyExc_TypeError, "gathered takes a list of pieces");
    Py_ssize_t most = PyList_Size(pieces), opened = 0, rows = 0;
    Piece *all = PyMem_Calloc((size_t)most + 1, sizeof(Piece));
    PyObject *offsets = NULL, *values = NULL, *answer = NULL;
    if (all == NULL)
        return PyErr_NoMemory();
    for (; opened < most && open_piece(pieces, opened, all + opened); opened++)
        rows += all[opened].count;
    if (opened == most)
        offsets = PyBytes_FromStringAndSize(NULL, (rows + 1) * (Py_ssize_t)sizeof(int32_t));
    if (offsets != NULL) {
        Byte *at = (Byte *)PyBytes_AsString(offsets);
        int64_t total = 0;
        memset(at, 0, sizeof(int32_t));
        at += sizeof(int32_t);
        for (Py_ssize_t index = 0; total >= 0 && index < opened; index++) {
            total = add_offsets(all + index, at, total);
            at += all[index].count * (Py_ssize_t)sizeof(int32_t);
        }
        values = total < 0 ? NULL : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    }
    if (values != NULL) {
        Byte *at = (Byte *)PyBytes_AsString(values);
        for (Py_ssize_t index = 0; index < opened; index++)
            at = copy_piece(all + index, at);
        answer = PyTuple_Pack(2, offsets, values);
    }
    while (opened > 0)
        close_piece(all + --opened);
    PyMem_Free(all);
    Py_XDECREF(offsets);
    Py_XDECREF(values);
    return answer;
}

static PyObject *checksum(PyObject *module, PyObject *data)
{
    Reader reader;
    return bytes_of(data, &reader) ? PyLong_FromUnsignedLong(crc32c_of(reader.at, reader.end)) : NULL;
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(split),
    FUNCTION(plain_sends),
    FUNCTION(send_receipts),
    FUNCTION(plain_acks),
    FUNCTION(message_pieces),
    FUNCTION(stored_metadata),
    FUNCTION(held_values),
    FUNCTION(pack_run),
    FUNCTION(cut_adds),
    FUNCTION(highest_lac),
    {"record_headers", record_headers, METH_O, NULL},
    FUNCTION(batch_places),
    {"gathered", gathered, METH_O, NULL},
    {"crc32c", checksum, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void)
{
    if (!has_instruction()) {
        PyErr_SetString(PyExc_ImportError, "this machine has no instruction for CRC32C");
        return NULL;
    }
    prepare_shift(long_shift, LONG_PART);
    prepare_shift(short_shift, SHORT_PART);
    str_ledger_id = PyUnicode_InternFromString("ledger_id");
    str_entry_id = PyUnicode_InternFromString("entry_id");
    str_data = PyUnicode_InternFromString("data");
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || !str_ledger_id || !str_entry_id || !str_data || PyModule_AddIntConstant(module, "REVISION", 6) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
