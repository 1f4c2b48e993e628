/* Two GPUs with the symbols and layouts of NVIDIA's nvml.h: the second is hot, tells no NVLink and, from the
   second look on, an XID. The first has three ECC errors and 7 + 1 errors of NVLink more at each look. */
#include <string.h>
#include <time.h>
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned id, scope; long long timestamp, latency; unsigned kind, result;
                 union { double d; unsigned i; unsigned long l; unsigned long long ll; } value; } field_t;
static int gpus[2] = {0, 1};
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &gpus[i]; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, rates_t *r) { r->gpu = *(int *)h ? 7 : 93; r->memory = 1; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) {
  m->total = 80ull << 30; m->used = 61ull << 30; m->free = m->total - m->used; return 0; }
/* What the driver keeps for itself is no part of what is used. The second GPU's driver has no such call. */
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2_t;
int nvmlDeviceGetMemoryInfo_v2(void *h, memory2_t *m) {
  if (*(int *)h) return 13;
  if (m->version != (sizeof *m | 2u << 24)) return 25;
  m->total = 80ull << 30; m->reserved = 1ull << 30; m->used = 60ull << 30;
  m->free = m->total - m->reserved - m->used; return 0; }
int nvmlDeviceGetTemperature(void *h, unsigned kind, unsigned *t) { *t = *(int *)h ? 91 : 64; return kind; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { *mw = 612345; return 0; }
int nvmlDeviceGetClockInfo(void *h, unsigned kind, unsigned *mhz) { *mhz = kind == 1 ? 1755 : 0; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *r) {
  *r = *(int *)h ? 0x40 : 0x4; return 0; }
int nvmlDeviceGetPcieThroughput(void *h, unsigned way, unsigned *kib) { *kib = way ? 3072 : 1024; return 0; }
int nvmlDeviceGetFieldValues(void *h, int n, field_t *f) {
  static unsigned long long kib; if (!*(int *)h) kib += 1048576;
  for (int i = 0; i < n; i++) {
    int moved = f[i].id == 138 || f[i].id == 139;
    f[i].value.ll = 0xdeadbeef;
    if (*(int *)h || f[i].scope != (moved ? 0xFFFFFFFFu : 0) || f[i].id == 38 || f[i].id == 45) {
      f[i].result = 3; continue; }
    f[i].kind = moved ? 3 : 1; f[i].result = 0;
    if (moved) f[i].value.ll = kib;
    else if (f[i].id == 4) f[i].value.i = 100 + 3 * (kib >> 20);
    else if (f[i].id == 52) f[i].value.i = 7 * (kib >> 20);
    else if (f[i].id == 59) f[i].value.i = kib >> 20;
    else return 2;
  }
  return 0; }
typedef struct { void *device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } event_t;
static int watched, set, waits;
int nvmlEventSetCreate(void **s) { *s = &set; return 0; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long kinds, void *s) {
  if (kinds != 8 || s != &set) return 2;
  watched |= 1 << *(int *)h; return 0; }
int nvmlEventSetWait_v2(void *s, event_t *e, unsigned timeout_ms) {
  if (s != &set || timeout_ms) return 2;
  if (watched != 3 || ++waits != 2) return 10;
  memset(e, 0, sizeof *e); e->device = &gpus[1]; e->kind = 8; e->data = 79; return 0; }
