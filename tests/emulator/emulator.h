/// What the emulated device offers to the numerics, to the stand-ins of CUDA's libraries, and to tests (by ctypes).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A range of memory that a kernel reads, or writes.
struct EmulatorAccess {
  const void* begin;
  size_t bytes;
  int write;
};

/// Launches a kernel that calls `run(data)` on the stream's thread, in stream order, once for each time that it runs: a
/// kernel that was captured runs at each launch of its graph. `destroy(data)` is called once, after the last run.
/// `name` must outlive the process's use of the device (a literal, or an interned string). Returns a cudaError_t.
int emulator_launch(void* stream, const char* name, void (*run)(void*), void* data, void (*destroy)(void*),
                    const struct EmulatorAccess* accesses, size_t count);

/// Launches a kernel of which nothing is known but its name: it takes its time and computes nothing.
int emulator_launch_hollow(void* stream, const char* name);

/// The device fails with this cudaError_t, as after an assertion in a kernel: every later call returns it.
void emulator_lose_device(int error);

/// An error that a call returns in place of doing its work, `times` times after `skip` calls that succeed.
void emulator_inject(const char* call, int error, uint64_t skip, uint64_t times);

/// Forgets a lost device and injected errors (for the next test). Streams, events and memory stay as they are.
void emulator_restore(void);

/// The next report of a race that was not yet taken: writes at most `size` characters, returns 0 where there is none.
size_t emulator_take_race(char* text, size_t size);

/// The next name of a hollow kernel that was launched and not yet taken, as above.
size_t emulator_take_hollow(char* text, size_t size);

/// How often this call was made.
uint64_t emulator_calls(const char* call);

#ifdef __cplusplus
}
#endif
