// Preloaded into a process: lets the n-th chance of one kind of fault come true. Chances are calls by torchshare's own
// libraries, also through the C++ library; Python's threads count, too, and all memory of tensors. Nothing of this is
// compiled into torchshare.

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string_view>

namespace {

enum Kind : int { kNone, kAllocation, kTensor, kThread, kThrow, kDelay };

constexpr unsigned kDelayUs = 20'000;

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool has(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return begin <= at && at < end;
  }
};

// Written by `faults_arm`, before the threads that read them are started.
std::array<Range, 2> ours;
Range cpp_library;
Range python;
Kind armed = kNone;
std::uint64_t due = 0;  // 0: chances are only counted

std::atomic<std::uint64_t> chances{0};

bool is_ours(const void* caller) {
  return ours[0].has(caller) || ours[1].has(caller);
}

_Unwind_Reason_Code skip_cpp_library(_Unwind_Context* frame, void* found) {
  const auto* const at = reinterpret_cast<const void*>(_Unwind_GetIP(frame));
  auto& [caller, entered] = *static_cast<std::pair<const void*, bool>*>(found);
  if (cpp_library.has(at)) {
    entered = true;
  } else if (entered) {
    caller = at;
    return _URC_NORMAL_STOP;
  }
  return _URC_NO_REASON;
}

bool is_called_by_us(const void* caller) {
  if (!cpp_library.has(caller)) {
    return is_ours(caller);
  }
  std::pair<const void*, bool> found{nullptr, false};
  _Unwind_Backtrace(&skip_cpp_library, &found);
  return is_ours(found.first);
}

bool is_chance(Kind kind, const void* caller) {
  return armed == kind && is_called_by_us(caller);
}

/// Counts a chance; returns whether it is the one that comes true, and then says where it is.
bool comes_true(bool is_chance) {
  if (!is_chance || ++chances != due) {
    return false;
  }
  std::array<void*, 24> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), frames.size()), STDERR_FILENO);
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// torch's libraries are not in the scope that RTLD_NEXT looks in.
template <class Function>
Function* torchs(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), name));
}

void throw_if_due(const void* caller) {
  if (comes_true(is_chance(kThrow, caller))) {
    throw std::runtime_error("injected");
  }
}

void delay_if_due(const void* caller) {
  if (comes_true(armed == kDelay && is_ours(caller))) {
    usleep(kDelayUs);
  }
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) noexcept {
  if (comes_true(is_chance(kAllocation, caller))) {
    return nullptr;
  }
  return alignment == 0 ? std::malloc(bytes)
                        : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* checked(void* block) {
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  return block;
}

int note_library(dl_phdr_info* info, std::size_t, void*) {
  const std::string_view path = info->dlpi_name;
  Range* const range = path.find("/torchshare/_C.") != path.npos      ? &ours[0]
                       : path.find("/torchshare/_core.") != path.npos ? &ours[1]
                       : path.find("/libstdc++.so") != path.npos      ? &cpp_library
                       : path.find("/libpython") != path.npos         ? &python
                       : path.empty() && python.end == 0              ? &python  // the program
                                                                      : nullptr;
  for (int i = 0; range != nullptr && i < info->dlpi_phnum; ++i) {
    if (const auto& segment = info->dlpi_phdr[i]; segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0) {
      const auto begin = info->dlpi_addr + segment.p_vaddr;
      *range = {begin, begin + segment.p_memsz};
    }
  }
  return 0;
}

}  // namespace

// The callers of the replacements.
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

extern "C" {

/// From now on the chances of `kind` are counted, and the `position`-th comes true; 0: none does.
void faults_arm(int kind, std::uint64_t position) {
  dl_iterate_phdr(&note_library, nullptr);
  chances = 0;
  due = position;
  armed = static_cast<Kind>(kind);
}

std::uint64_t faults_chances() {
  return chances;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  static auto* const real = next<decltype(pthread_create)>("pthread_create");
  return comes_true(is_chance(kThread, CALLER) || (armed == kThread && python.has(CALLER)))
             ? EAGAIN
             : real(thread, attributes, run, argument);
}

int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  static auto* const real = next<decltype(posix_memalign)>("posix_memalign");
  return comes_true(armed == kTensor) ? ENOMEM : real(block, alignment, bytes);
}

void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  static auto* const real = next<decltype(mmap)>("mmap");
  if (comes_true(is_chance(kTensor, CALLER))) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return real(address, bytes, protection, flags, file, offset);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const real = next<decltype(pthread_mutex_lock)>("pthread_mutex_lock");
  delay_if_due(CALLER);
  return real(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static auto* const real = next<decltype(pthread_mutex_unlock)>("pthread_mutex_unlock");
  delay_if_due(CALLER);
  return real(mutex);
}

/// EventCount waits and wakes with it.
long syscall(long number, ...) noexcept {
  static auto* const real = next<long(long, ...)>("syscall");
  std::array<long, 6> given{};
  va_list arguments;
  va_start(arguments, number);
  for (long& each : given) {
    each = va_arg(arguments, long);
  }
  va_end(arguments);
  delay_if_due(CALLER);
  return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

// Calls of torch that a runtime and a job make around the job's ops; by their mangled names.

int _ZN2at15get_num_threadsEv() {
  static auto* const real = torchs<int()>("_ZN2at15get_num_threadsEv");
  throw_if_due(CALLER);
  return real();
}

void _ZN2at15set_num_threadsEi(int threads) {
  static auto* const real = torchs<void(int)>("_ZN2at15set_num_threadsEi");
  throw_if_due(CALLER);
  real(threads);
}

/// at::Generator createCPUGenerator(uint64_t): the result is returned by way of its address.
void* _ZN2at6detail18createCPUGeneratorEm(void* result, std::uint64_t seed) {
  static auto* const real = torchs<void*(void*, std::uint64_t)>("_ZN2at6detail18createCPUGeneratorEm");
  throw_if_due(CALLER);
  return real(result, seed);
}

}  // extern "C"

void* operator new(std::size_t bytes) {
  return checked(allocate(bytes, 0, CALLER));
}

void* operator new[](std::size_t bytes) {
  return checked(allocate(bytes, 0, CALLER));
}

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0, CALLER);
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return checked(allocate(bytes, static_cast<std::size_t>(alignment), CALLER));
}
