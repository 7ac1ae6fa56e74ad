// A libcuda whose calls do nothing on any device: the entry points that the product uses, and no others.
//
// Each call counts itself and checks its arguments: handles that were given out and not given back, a current
// context, launches inside a device's limits. A wrong argument is answered with the driver's own code for it, and kept
// for stub_complaint(). stub_fail() makes the n-th next call of a name fail. "Device" memory is host memory:
// cuMemcpyAsync copies at once.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600 };
enum { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION, EXEC, KINDS };
#define PUBLIC __attribute__((visibility("default")))
#define MOST 65536
#define PINNED 0x70696e6e6564

typedef struct { const char* name; uint64_t calls; uint64_t fail_at; CUresult code; } Entry;
static Entry entries[64];
static int num_entries;
static char complaint[256];
static unsigned char kinds[MOST];  // of a handle: its index times 16 is its value
static uint64_t last_handle;
static uint64_t current;
static uint64_t pinned;  // bytes
static uint64_t pushed[16];  // contexts below the current one
static int num_pushed;
static volatile int busy;  // streams are at work
static struct { char* areas; size_t stride; const uint32_t* ticket; } reply;  // a launched graph publishes at once
static int64_t launched_ns;
static struct { unsigned grid[3], block[3], shared, attributes, dependent, cluster; uint64_t stream; } last;

static Entry* entry(const char* name) {
  for (int i = 0; i < num_entries; ++i)
    if (entries[i].name == name || !strcmp(entries[i].name, name)) return &entries[i];
  entries[num_entries].name = name;
  return &entries[num_entries++];
}

static CUresult complain(CUresult code, const char* name, const char* why) {
  if (!complaint[0]) snprintf(complaint, sizeof complaint, "%s: %s", name, why);
  return code;
}

#define ENTER(needs_context)                                                        \
  static Entry* self;                                                               \
  if (!self) self = entry(__func__);                                                \
  if (++self->calls == self->fail_at) return self->code;                            \
  if ((needs_context) && !current) return complain(INVALID_CONTEXT, __func__, "no context is current");
#define NEED(condition, code, why) if (!(condition)) return complain(code, __func__, why);

static uint64_t make(int kind) {
  do last_handle = last_handle % (MOST - 1) + 1; while (kinds[last_handle]);
  kinds[last_handle] = kind;
  return last_handle * 16;
}
static int is(uint64_t handle, int kind) { return handle % 16 == 0 && handle / 16 < MOST && kinds[handle / 16] == kind; }

// ------------------------------------------------------------------ questions of tests and benches

PUBLIC uint64_t stub_calls(const char* name) { return entry(strdup(name))->calls; }
PUBLIC void stub_fail(const char* name, uint64_t nth, CUresult code) {
  Entry* found = entry(strdup(name));
  found->fail_at = found->calls + nth;
  found->code = code;
}
PUBLIC const char* stub_complaint(void) { return complaint; }
PUBLIC void stub_forget(void) { complaint[0] = 0; busy = 0; reply.areas = 0; }
PUBLIC void stub_busy(int on) { busy = on; }
PUBLIC void stub_reply(char* areas, size_t stride, const uint32_t* ticket) {
  reply.areas = areas; reply.stride = stride; reply.ticket = ticket;
}
PUBLIC int64_t stub_launched_ns(void) { return launched_ns; }
PUBLIC int stub_live(int kind) {
  int count = 0;
  for (int i = 0; i < MOST; ++i) count += kinds[i] == kind;
  return count;
}
PUBLIC uint64_t stub_pinned(void) { return pinned; }
PUBLIC void stub_last_launch(uint64_t* out) {
  for (int i = 0; i < 3; ++i) { out[i] = last.grid[i]; out[3 + i] = last.block[i]; }
  out[6] = last.shared; out[7] = last.stream; out[8] = last.dependent; out[9] = last.cluster;
}

// ------------------------------------------------------------------ the driver's entry points

PUBLIC CUresult cuInit(unsigned flags) { ENTER(0) NEED(flags == 0, INVALID_VALUE, "flags") return OK; }
PUBLIC CUresult cuDriverGetVersion(int* version) { ENTER(0) *version = 13000; return OK; }
PUBLIC CUresult cuDeviceGetCount(int* count) { ENTER(0) *count = 1; return OK; }
PUBLIC CUresult cuCtxGetCurrent(uint64_t* context) { ENTER(0) *context = current; return OK; }
PUBLIC CUresult cuCtxSetCurrent(uint64_t context) {
  ENTER(0) NEED(is(context, CONTEXT), INVALID_CONTEXT, "no such context")
  current = context;
  return OK;
}
PUBLIC CUresult cuCtxPushCurrent(uint64_t context) {
  ENTER(0) NEED(is(context, CONTEXT) && num_pushed < 16, INVALID_CONTEXT, "no such context")
  pushed[num_pushed++] = current;
  current = context;
  return OK;
}
PUBLIC CUresult cuCtxPopCurrent(uint64_t* context) {
  ENTER(1) NEED(num_pushed, INVALID_CONTEXT, "no context was pushed")
  if (context) *context = current;
  current = pushed[--num_pushed];
  return OK;
}
PUBLIC uint64_t stub_context(void) { return current = make(CONTEXT); }
PUBLIC CUresult cuStreamCreate(uint64_t* stream, unsigned flags) {
  ENTER(1) NEED(flags <= 1, INVALID_VALUE, "flags") *stream = make(STREAM); return OK;
}
PUBLIC CUresult cuStreamSynchronize(uint64_t stream) {
  ENTER(1) NEED(is(stream, STREAM), INVALID_HANDLE, "no such stream") return OK;
}
PUBLIC CUresult cuStreamQuery(uint64_t stream) {
  ENTER(1) NEED(is(stream, STREAM), INVALID_HANDLE, "no such stream") return busy ? NOT_READY : OK;
}
PUBLIC CUresult cuEventCreate(uint64_t* event, unsigned flags) {
  ENTER(1) NEED(flags <= 3, INVALID_VALUE, "flags") *event = make(EVENT); return OK;
}
PUBLIC CUresult cuEventRecord(uint64_t event, uint64_t stream) {
  ENTER(1) NEED(is(event, EVENT) && is(stream, STREAM), INVALID_HANDLE, "no such event or stream") return OK;
}
PUBLIC CUresult cuEventSynchronize(uint64_t event) {
  ENTER(1) NEED(is(event, EVENT), INVALID_HANDLE, "no such event") return OK;
}
PUBLIC CUresult cuEventQuery(uint64_t event) {
  ENTER(1) NEED(is(event, EVENT), INVALID_HANDLE, "no such event") return OK;
}
PUBLIC CUresult cuEventElapsedTime(float* milliseconds, uint64_t first, uint64_t end) {
  ENTER(1) NEED(is(first, EVENT) && is(end, EVENT), INVALID_HANDLE, "no such event") *milliseconds = 1; return OK;
}
PUBLIC CUresult cuEventDestroy(uint64_t event) {
  ENTER(1) NEED(is(event, EVENT), INVALID_HANDLE, "no such event") kinds[event / 16] = 0; return OK;
}
PUBLIC CUresult cuMemcpyAsync(uintptr_t target, uintptr_t source, size_t bytes, uint64_t stream) {
  ENTER(1) NEED(is(stream, STREAM), INVALID_HANDLE, "no such stream") NEED(bytes, INVALID_VALUE, "no bytes")
  memcpy((void*)target, (const void*)source, bytes);
  return OK;
}
PUBLIC CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  ENTER(1) NEED(bytes && flags <= 7, INVALID_VALUE, "bytes or flags")
  uint64_t* room = malloc(64 + bytes);  // their number and a mark stand in front of them
  if (!room) return OUT_OF_MEMORY;
  pinned += room[0] = bytes;
  room[1] = PINNED;
  *address = room + 8;
  return OK;
}
PUBLIC CUresult cuMemFreeHost(void* address) {
  uint64_t* room = (uint64_t*)address - 8;
  ENTER(1) NEED(address && room[1] == PINNED, INVALID_VALUE, "no such memory")
  pinned -= room[0];
  room[1] = 0;
  free(room);
  return OK;
}
PUBLIC CUresult cuMemGetInfo(size_t* free_bytes, size_t* total) {
  ENTER(1) *total = (size_t)80 << 30; *free_bytes = *total - ((size_t)1 << 30); return OK;
}
PUBLIC CUresult cuMemHostGetDevicePointer(uintptr_t* device, uintptr_t host, unsigned flags) {
  ENTER(1) NEED(flags == 0, INVALID_VALUE, "flags") *device = host; return OK;
}
PUBLIC CUresult cuModuleLoadData(uint64_t* module, const void* image) {
  ENTER(1) NEED(image, INVALID_VALUE, "no image") *module = make(MODULE); return OK;
}
PUBLIC CUresult cuModuleGetFunction(uint64_t* function, uint64_t module, const char* name) {
  ENTER(1) NEED(is(module, MODULE), INVALID_HANDLE, "no such module") NEED(name && *name, NOT_FOUND, "no name")
  *function = make(FUNCTION);
  return OK;
}
PUBLIC CUresult cuFuncSetAttribute(uint64_t function, int attribute, int value) {
  ENTER(1) NEED(is(function, FUNCTION), INVALID_HANDLE, "no such function")
  NEED(attribute == 8 && value > 48 << 10 && value <= 227 << 10, INVALID_VALUE, "shared memory")
  return OK;
}
typedef struct { int id; char pad[4]; union { int serial; char bytes[64]; } value; } Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  uint64_t stream;
  Attribute* attributes;
  unsigned num_attributes;
} LaunchConfig;
PUBLIC CUresult cuLaunchKernelEx(const LaunchConfig* c, uint64_t function, void** params, void** extra) {
  ENTER(1) NEED(is(function, FUNCTION) && is(c->stream, STREAM), INVALID_HANDLE, "no such function or stream")
  unsigned threads = c->block[0] * c->block[1] * c->block[2];
  NEED(threads >= 1 && threads <= 1024 && c->block[2] <= 64, INVALID_VALUE, "threads of a block")
  NEED(c->grid[0] >= 1 && c->grid[0] <= 0x7fffffff && c->grid[1] >= 1 && c->grid[1] <= 65535 && c->grid[2] >= 1 &&
           c->grid[2] <= 65535, INVALID_VALUE, "the grid")
  NEED(c->shared <= 227 << 10, INVALID_VALUE, "shared memory")
  NEED(params && !extra, INVALID_VALUE, "parameters")
  last.dependent = last.cluster = 0;
  for (unsigned i = 0; i < c->num_attributes; ++i)
    if (c->attributes[i].id == 4) last.cluster = c->attributes[i].value.serial;
    else if (c->attributes[i].id == 6) last.dependent = c->attributes[i].value.serial;
  memcpy(last.grid, c->grid, sizeof last.grid);
  memcpy(last.block, c->block, sizeof last.block);
  last.shared = c->shared; last.stream = c->stream;
  return OK;
}
PUBLIC CUresult cuGraphInstantiate(uint64_t* exec, uint64_t graph, unsigned long long flags) {
  ENTER(1) NEED(graph && !flags, INVALID_VALUE, "the graph") *exec = make(EXEC); return OK;
}
PUBLIC CUresult cuGraphInstantiateWithFlags(uint64_t* exec, uint64_t graph, unsigned long long flags) {
  return cuGraphInstantiate(exec, graph, flags);
}
PUBLIC CUresult cuGraphUpload(uint64_t exec, uint64_t stream) {
  ENTER(1) NEED(is(exec, EXEC) && is(stream, STREAM), INVALID_HANDLE, "no such graph or stream") return OK;
}
PUBLIC CUresult cuGraphLaunch(uint64_t exec, uint64_t stream) {
  ENTER(1) NEED(is(exec, EXEC) && is(stream, STREAM), INVALID_HANDLE, "no such graph or stream")
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  launched_ns = now.tv_sec * 1000000000ll + now.tv_nsec;
  if (reply.areas) *(uint32_t*)(reply.areas + reply.ticket[1] * reply.stride) = reply.ticket[0];
  return OK;
}
PUBLIC CUresult cuGraphExecDestroy(uint64_t exec) {
  ENTER(1) NEED(is(exec, EXEC), INVALID_HANDLE, "no such graph") kinds[exec / 16] = 0; return OK;
}
PUBLIC CUresult cuGetErrorString(int code, const char** text) { ENTER(0) *text = "a code of the stub"; return OK; }
PUBLIC CUresult cuGetErrorName(int code, const char** text) { ENTER(0) *text = "STUB"; return OK; }

// NVRTC asks a libcuda that it finds for private tables, and goes on without them. It does not check for the function.
PUBLIC CUresult cuGetExportTable(const void** table, const void* id) {
  (void)id;
  *table = 0;
  return 500;  // CUDA_ERROR_NOT_FOUND
}

PUBLIC CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
  Dl_info self;
  dladdr((void*)&cuInit, &self);
  void* library = dlopen(self.dli_fname, RTLD_NOLOAD | RTLD_NOW);
  *function = !strcmp(symbol, "cuGetProcAddress") ? (void*)&cuGetProcAddress_v2 : dlsym(library, symbol);
  if (status) *status = *function ? 0 : 1;
  return *function ? OK : NOT_FOUND;
}
PUBLIC CUresult cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, 0);
}
