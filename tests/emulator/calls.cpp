#include "calls.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>

#include "emulator.h"

namespace emulator {
namespace {

struct Injected {
  cudaError_t error;
  std::uint64_t skip;
  std::uint64_t times;
};

struct Calls {
  std::mutex mutex;  // guards every field below
  std::unordered_map<std::string, std::uint64_t> counts;
  std::unordered_map<std::string, Injected> injected;
  std::deque<std::string> hollow;  // names of kernels that were not taken
};

Calls& calls() {
  static Calls* const all = new Calls;  // used until the process ends
  return *all;
}

std::atomic<bool> used{false};
std::atomic<bool> forked{false};
thread_local int host_functions = 0;

[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { forked = used.load(); });

/// Errors after which "any further CUDA work will return the same error" (driver_types.h).
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

cudaError_t injected_into(const char* call) {
  std::lock_guard lock(calls().mutex);
  ++calls().counts[call];
  const auto found = calls().injected.find(call);
  if (found == calls().injected.end()) {
    return cudaSuccess;
  }
  auto& [error, skip, times] = found->second;
  if (skip > 0) {
    --skip;
    return cudaSuccess;
  }
  if (times == 0) {
    return cudaSuccess;
  }
  --times;
  return error;
}

std::size_t write(const std::string& from, char* text, std::size_t size) {
  if (size > 0) {
    std::snprintf(text, size, "%s", from.c_str());
  }
  return from.size();
}

}  // namespace

cudaError_t& last_error() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}

cudaError_t enter_without_device(const char* call) {
  if (forked) {
    return cudaErrorInitializationError;
  }
  if (host_functions > 0) {
    return cudaErrorNotPermitted;
  }
  const cudaError_t error = injected_into(call);
  if (is_sticky(error)) {
    lose_device(error);
  }
  return error;
}

cudaError_t enter(const char* call) {
  used = true;
  const cudaError_t error = enter_without_device(call);
  return error != cudaSuccess ? error : static_cast<cudaError_t>(lost_by());
}

// NotReady is remembered too: the programming guide ("Error Checking") says that it is not, but torch clears it after
// every query, and so do we. Code that does so is right on either.
cudaError_t leave(const char* call, cudaError_t error) {
  if (error != cudaSuccess) {
    last_error() = error;
    if (Settings::get().trace) {
      fmt::print(stderr, "emulator: {} returns {}\n", call, cudaGetErrorName(error));
    }
  }
  return error;
}

HostFunction::HostFunction() {
  ++host_functions;
}
HostFunction::~HostFunction() {
  --host_functions;
}

void load_numerics() {
  static std::atomic<bool> asked{false};  // the numerics ask for the device while they are loaded
  if (asked.exchange(true)) {
    return;
  }
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&load_numerics), &own);
  const std::string path(own.dli_fname);
  const std::string numerics = path.substr(0, path.rfind('/') + 1) + "libtorchshare_emulator_numerics.so";
  // Global, so that compiled packages find its shims before torch's.
  if (dlopen(numerics.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    fmt::print(stderr, "emulator: {}: kernels compute nothing\n", dlerror());
  }
}

}  // namespace emulator

using namespace emulator;

API int emulator_launch(void* stream, const char* name, void (*run)(void*), void* data, void (*destroy)(void*),
                        const EmulatorAccess* accesses, size_t count) {
  const std::shared_ptr<void> held(data, destroy);
  return launch_call(static_cast<cudaStream_t>(stream), [&](const auto& to) {
    Work work{.name = name, .duration = Settings::get().kernel, .takes_slot = true};
    for (const EmulatorAccess& access : std::span(accesses, count)) {
      const auto begin = reinterpret_cast<std::uintptr_t>(access.begin);
      work.accesses.push_back({begin, begin + access.bytes, access.write != 0, name});
    }
    work.run = [held, run] { run(held.get()); };
    return submit(to, std::move(work));
  });
}

API int emulator_launch_hollow(void* stream, const char* name) {
  return launch_call(static_cast<cudaStream_t>(stream), [&](const auto& to) {
    {
      std::lock_guard lock(calls().mutex);
      calls().hollow.emplace_back(name);
    }
    return submit(to, {.name = name, .duration = Settings::get().kernel, .takes_slot = true});
  });
}

API void emulator_lose_device(int error) {
  lose_device(error);
}

API void emulator_inject(const char* call, int error, uint64_t skip, uint64_t times) {
  std::lock_guard lock(calls().mutex);
  calls().injected[call] = {static_cast<cudaError_t>(error), skip, times};
}

API void emulator_restore(void) {
  std::lock_guard lock(calls().mutex);
  calls().injected.clear();
  restore_device();
}

API size_t emulator_take_race(char* text, size_t size) {
  return write(RaceCheck::get().take(), text, size);
}

API size_t emulator_take_hollow(char* text, size_t size) {
  std::lock_guard lock(calls().mutex);
  if (calls().hollow.empty()) {
    return 0;
  }
  const std::string first = std::move(calls().hollow.front());
  calls().hollow.pop_front();
  return write(first, text, size);
}

API uint64_t emulator_calls(const char* call) {
  std::lock_guard lock(calls().mutex);
  const auto found = calls().counts.find(call);
  return found == calls().counts.end() ? 0 : found->second;
}
