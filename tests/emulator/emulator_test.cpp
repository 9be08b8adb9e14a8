// What the emulated device promises to those who test on it.
#include "emulator.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

/// A kernel that calls a function, and the memory that it touches.
struct Kernel {
  std::function<void()> body;
};

int launch(
    cudaStream_t stream, const char* name, std::vector<EmulatorAccess> accesses, std::function<void()> body = [] {}) {
  return emulator_launch(
      stream, name, [](void* kernel) { static_cast<Kernel*>(kernel)->body(); }, new Kernel{std::move(body)},
      [](void* kernel) { delete static_cast<Kernel*>(kernel); }, accesses.data(), accesses.size());
}

std::string take_race() {
  char text[1024] = {};
  emulator_take_race(text, sizeof text);
  return text;
}

class EmulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    for (cudaStream_t* stream : {&first, &second}) {
      ASSERT_EQ(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, 0), cudaSuccess);
    }
    ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory, 4096), cudaSuccess);
  }
  void TearDown() override {
    emulator_restore();
    cudaDeviceSynchronize();
    cudaFree(memory);
    cudaEventDestroy(event);
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
    cudaGetLastError();
    while (!take_race().empty()) {
    }
  }
  /// Ends the capture of `first`.
  cudaGraphExec_t end_capture() const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return executable;
  }
  EmulatorAccess all(int write) const { return {memory, 4096, write}; }
  EmulatorAccess half(int which, int write) const { return {static_cast<char*>(memory) + 2048 * which, 2048, write}; }

  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
};

TEST_F(EmulatorTest, WorkOfAStreamRunsInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    launch(first, "append", {}, [&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  EXPECT_TRUE(order.size() == 100 && std::is_sorted(order.begin(), order.end()));
}

TEST_F(EmulatorTest, AStreamOfHigherPriorityKeepsItsSlot) {
  // More streams of low priority than slots. Their kernels run until the high ones have ended: if one of them took the
  // slot of the high ones, those would never run.
  constexpr int kSlots = 4;  // the emulator's default
  constexpr auto kForever = 20s;
  cudaStream_t high = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, -5), cudaSuccess);
  std::vector<cudaStream_t> low(2 * kSlots);
  std::counting_semaphore<> high_began(0);
  std::counting_semaphore<> low_began(0);
  std::promise<void> high_ends;
  const std::shared_future<void> high_ended(high_ends.get_future());
  std::atomic<int> timeouts{0};
  launch(high, "high", {}, [&] {
    high_began.release();
    for (int i = 0; i < kSlots - 1; ++i) {
      timeouts += low_began.try_acquire_for(kForever) ? 0 : 1;
    }
  });
  for (int i = 0; i < 1000; ++i) {
    launch(high, "high", {});
  }
  launch(high, "high", {}, [&] { high_ends.set_value(); });
  ASSERT_TRUE(high_began.try_acquire_for(kForever));  // it has its slot
  for (cudaStream_t& stream : low) {
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    launch(stream, "low", {}, [&] {
      low_began.release();
      timeouts += high_ended.wait_for(kForever) == std::future_status::ready ? 0 : 1;
    });
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(timeouts, 0);
  for (const cudaStream_t stream : low) {
    cudaStreamDestroy(stream);
  }
  cudaStreamDestroy(high);
}

// ---- races

TEST_F(EmulatorTest, TwoWritesInTwoStreamsAreARaceHoweverTheyRan) {
  launch(first, "one", {all(1)});
  std::this_thread::sleep_for(20ms);  // it has ended, but nothing says so
  launch(second, "two", {half(1, 1)});
  const std::string race = take_race();
  EXPECT_NE(race.find("one"), std::string::npos) << race;
  EXPECT_NE(race.find("two"), std::string::npos) << race;
}

TEST_F(EmulatorTest, AReadBeforeAWriteIsARaceAndTwoReadsAreNot) {
  launch(first, "write", {all(1)});
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  launch(first, "read", {all(0)});
  launch(second, "read", {all(0)});
  EXPECT_EQ(take_race(), "");
  launch(second, "write", {all(1)});
  EXPECT_NE(take_race(), "");
}

TEST_F(EmulatorTest, RangesThatDoNotOverlapAreNoRace) {
  launch(first, "one", {half(0, 1)});
  launch(second, "two", {half(1, 1)});
  EXPECT_EQ(take_race(), "");
}

TEST_F(EmulatorTest, AnEventOrdersTwoStreams) {
  launch(first, "one", {all(1)});
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  launch(first, "later", {half(0, 1)});
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  launch(second, "two", {half(1, 1)});
  EXPECT_EQ(take_race(), "");
  launch(second, "three", {half(0, 1)});  // not after `later`
  EXPECT_NE(take_race().find("later"), std::string::npos);
}

TEST_F(EmulatorTest, AWaitOfTheHostOrdersWhatItEnqueuesNext) {
  for (const auto wait : {+[](cudaStream_t stream, cudaEvent_t) { return cudaStreamSynchronize(stream); },
                          +[](cudaStream_t, cudaEvent_t event) { return cudaEventSynchronize(event); },
                          +[](cudaStream_t, cudaEvent_t) { return cudaDeviceSynchronize(); },
                          +[](cudaStream_t stream, cudaEvent_t) {
                            while (cudaStreamQuery(stream) == cudaErrorNotReady) {
                            }
                            return cudaSuccess;
                          }}) {
    launch(first, "one", {all(1)});
    ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
    ASSERT_EQ(wait(first, event), cudaSuccess);
    launch(second, "two", {all(1)});
    EXPECT_EQ(take_race(), "");
    ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  }
}

TEST_F(EmulatorTest, PinnedMemoryThatChangesBeforeItsCopyIsARace) {
  char* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 4096, 0), cudaSuccess);
  std::atomic<bool> go{false};
  launch(first, "wait", {}, [&] { go.wait(false); });
  ASSERT_EQ(cudaMemcpyAsync(memory, pinned, 4096, cudaMemcpyDefault, first), cudaSuccess);
  pinned[7] = 1;
  go = true;
  go.notify_all();
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_NE(take_race().find("pinned"), std::string::npos);
}

// ---- captures

TEST_F(EmulatorTest, ACapturedGraphRunsAtEachLaunch) {
  int runs = 0;
  ASSERT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  launch(first, "count", {all(1)}, [&] { ++runs; });
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  launch(second, "count", {half(0, 1)}, [&] { ++runs; });
  cudaEvent_t join = nullptr;
  ASSERT_EQ(cudaEventCreate(&join), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(join, second), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(first, join, 0), cudaSuccess);
  const cudaGraphExec_t executable = end_capture();
  EXPECT_EQ(runs, 0);
  for (int launched = 0; launched < 3; ++launched) {
    ASSERT_EQ(cudaGraphLaunch(executable, first), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  EXPECT_EQ(runs, 6);
  EXPECT_EQ(take_race(), "");
  launch(second, "outside", {all(0)});  // after the captured wait, which is not one of the stream
  EXPECT_EQ(take_race(), "");
  ASSERT_EQ(cudaGraphLaunch(executable, first), cudaSuccess);
  EXPECT_NE(take_race().find("outside"), std::string::npos);
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);  // the kernels count in `runs`
  cudaGraphExecDestroy(executable);
  cudaEventDestroy(join);
}

TEST_F(EmulatorTest, ACapturedStreamHasTheNodesThatItsNextWorkFollows) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  const auto ask = [&](cudaStream_t stream) {
    return cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, &edges, &count);
  };
  ASSERT_EQ(ask(first), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  ASSERT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(ask(first), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(count, 0U);
  launch(first, "first", {all(1)});
  ASSERT_EQ(ask(first), cudaSuccess);
  ASSERT_EQ(count, 1U);
  const cudaGraphNode_t before = nodes[0];
  launch(first, "second", {all(1)});
  ASSERT_EQ(ask(first), cudaSuccess);
  ASSERT_EQ(count, 1U);
  EXPECT_NE(nodes[0], before);
  cudaGraphExecDestroy(end_capture());
}

TEST_F(EmulatorTest, BranchesOfAGraphMustNotConflict) {
  ASSERT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  launch(first, "left", {all(1)});
  launch(second, "right", {all(0)});
  ASSERT_EQ(cudaEventRecord(event, second), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(first, event, 0), cudaSuccess);
  const cudaGraphExec_t executable = end_capture();
  EXPECT_NE(take_race().find("right"), std::string::npos);
  cudaGraphExecDestroy(executable);
}

TEST_F(EmulatorTest, ACaptureForbidsWhatItsModeSays) {
  cudaGraph_t graph = nullptr;
  // Global: no thread may make unsafe calls; thread-local: only the capturing one may not; relaxed: all may.
  for (const auto& [mode, others] : {std::pair(cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported),
                                     std::pair(cudaStreamCaptureModeThreadLocal, cudaSuccess),
                                     std::pair(cudaStreamCaptureModeRelaxed, cudaSuccess)}) {
    ASSERT_EQ(cudaStreamBeginCapture(first, mode), cudaSuccess);
    cudaError_t in_other_thread{};
    std::thread([&] { in_other_thread = cudaDeviceSynchronize(); }).join();
    EXPECT_EQ(in_other_thread, others);
    const cudaError_t ended = cudaStreamEndCapture(first, &graph);
    EXPECT_EQ(ended, others == cudaSuccess ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
    if (ended == cudaSuccess) {
      cudaGraphDestroy(graph);
    }
  }
  ASSERT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* block = nullptr;
  EXPECT_EQ(cudaMalloc(&block, 1), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatorTest, TheLegacyStreamCannotJoinACapture) {
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, event, 0), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatorTest, WorkThatIsNotJoinedFailsTheCapture) {
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  launch(second, "alone", {});
  EXPECT_EQ(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureUnjoined);
}

// ---- errors and memory

TEST_F(EmulatorTest, AnErrorInAKernelStaysForGood) {
  launch(first, "assert", {}, [] { emulator_lose_device(cudaErrorAssert); });
  EXPECT_EQ(cudaStreamSynchronize(first), cudaErrorAssert);
  bool ran = false;
  EXPECT_EQ(launch(first, "later", {}, [&] { ran = true; }), cudaErrorAssert);
  void* block = nullptr;
  EXPECT_EQ(cudaMalloc(&block, 1), cudaErrorAssert);
  EXPECT_EQ(cudaGetLastError(), cudaErrorAssert);
  EXPECT_EQ(cudaGetLastError(), cudaErrorAssert);
  EXPECT_FALSE(ran);
}

TEST_F(EmulatorTest, AKernelThatTouchesOtherMemoryFails) {
  int outside = 0;
  launch(first, "stray", {{&outside, sizeof outside, 1}});
  EXPECT_EQ(cudaStreamSynchronize(first), cudaErrorIllegalAddress);
}

TEST_F(EmulatorTest, AnInjectedErrorComesInTheCallThatWasAskedFor) {
  emulator_inject("cudaEventRecord", cudaErrorInvalidValue, 1, 2);
  EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, first), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventRecord(event, first), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(EmulatorTest, NotReadyIsRememberedAsTheLastError) {
  std::atomic<bool> go{false};
  launch(first, "wait", {}, [&] { go.wait(false); });
  EXPECT_EQ(cudaStreamQuery(first), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  go = true;
  go.notify_all();
  EXPECT_EQ(cudaStreamSynchronize(first), cudaSuccess);
}

TEST_F(EmulatorTest, TheDeviceHasAnEnd) {
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  void* block = nullptr;
  EXPECT_EQ(cudaMalloc(&block, free + 4096), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST_F(EmulatorTest, PageableMemoryIsReadBeforeTheCallReturns) {
  int value = 7;
  std::atomic<bool> go{false};
  launch(first, "wait", {}, [&] { go.wait(false); });
  ASSERT_EQ(cudaMemcpyAsync(memory, &value, sizeof value, cudaMemcpyDefault, first), cudaSuccess);
  value = 8;
  go = true;
  go.notify_all();
  int back = 0;
  ASSERT_EQ(cudaMemcpyAsync(&back, memory, sizeof back, cudaMemcpyDefault, first), cudaSuccess);
  EXPECT_EQ(back, 7);
}

TEST_F(EmulatorTest, AHostFunctionMustNotCallCuda) {
  cudaError_t inside{};
  ASSERT_EQ(cudaLaunchHostFunc(
                first, [](void* error) { *static_cast<cudaError_t*>(error) = cudaDeviceSynchronize(); }, &inside),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  EXPECT_EQ(inside, cudaErrorNotPermitted);
}

TEST_F(EmulatorTest, ADestroyedStreamIsNoLongerKnown) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
}

TEST_F(EmulatorTest, TheDriverKnowsWhatItsVersionHas) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 11070, 0, &found), cudaSuccess);
  ASSERT_TRUE(found == cudaDriverEntryPointSuccess && function != nullptr);
  const auto write = reinterpret_cast<decltype(&cuStreamWriteValue32)>(function);
  ASSERT_EQ(write(first, reinterpret_cast<CUdeviceptr>(memory), 7, 0), CUDA_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  EXPECT_EQ(*static_cast<std::uint32_t*>(memory), 7U);
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 99000, 0, &found), cudaSuccess);
  EXPECT_TRUE(found == cudaDriverEntryPointVersionNotSufficent && function == nullptr);
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12000, 0, &found), cudaSuccess);
  EXPECT_EQ(found, cudaDriverEntryPointSymbolNotFound);
}

TEST_F(EmulatorTest, EachDeviceHasItsOwnStreamsEventsAndMemory) {
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  ASSERT_EQ(devices, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  std::size_t free_before = 0;
  std::size_t free_after = 0;
  std::size_t total = 0;
  void* other = nullptr;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&other, 4096), cudaSuccess);
  EXPECT_EQ(launch(first, "on the first device's stream", {}), cudaErrorInvalidResourceHandle);
  cudaEvent_t others = nullptr;
  ASSERT_EQ(cudaEventCreate(&others), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(others, first), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(others, nullptr), cudaSuccess);
  std::binary_semaphore may_end(0);
  ASSERT_EQ(launch(nullptr, "on the second's legacy stream", {{other, 4096, 1}}, [&] { may_end.acquire(); }),
            cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_after, free_before);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "does not wait for the other device";
  EXPECT_EQ(cudaStreamWaitEvent(first, others, 0), cudaSuccess);
  may_end.release();
  ASSERT_EQ(cudaFree(other), cudaSuccess);
  ASSERT_EQ(cudaEventDestroy(others), cudaSuccess);
}

TEST_F(EmulatorTest, AKernelThatTouchesAnotherDevicesMemoryLosesTheDevice) {
  void* other = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&other, 4096), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(memory, other, 4096, cudaMemcpyDefault, first), cudaSuccess) << "the driver copies";
  ASSERT_EQ(cudaStreamSynchronize(first), cudaSuccess);
  ASSERT_EQ(launch(first, "reads it", {{other, 4096, 0}}), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first), cudaErrorIllegalAddress);
  emulator_restore();
  ASSERT_EQ(cudaFree(other), cudaSuccess);
}

}  // namespace
