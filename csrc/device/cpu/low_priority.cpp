#include "device/cpu/low_priority.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <c10/util/Exception.h>
#include <dirent.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "device/cpu/cpu_load.h"

namespace torchshare {
namespace {

constexpr int kNiceness = 10;

/// Sets the scheduling policy of one thread; 0: the calling thread.
bool set_policy(int thread, int policy, const sched_param& param = {}) {
  return sched_setscheduler(thread, policy, &param) == 0;
}

bool set_niceness(int thread, int niceness) {
  return setpriority(PRIO_PROCESS, static_cast<id_t>(thread), niceness) == 0;  // on Linux, of that thread alone
}

int niceness(int thread) {
  return getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
}

std::string name_of(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

/// Makes OpenMP start the workers of the calling thread, with an op that is large enough to be parallelized: workers
/// inherit the current priority, and the thread may be raised later.
void make_workers() {
  if (at::get_num_threads() > 1) {
    at::empty({2 * at::internal::GRAIN_SIZE}, at::kByte).fill_(0);
  }
}

constexpr int kForGood = 1 << 16;  // never lowered again

}  // namespace

bool LowPriority::lower_thread(int thread) const {
  return how_ == DevicePriority::kNice ? set_niceness(thread, former_nice_ + kNiceness)
                                       : set_policy(thread, SCHED_IDLE);
}

bool LowPriority::restore_thread(int thread) const {
  return how_ == DevicePriority::kNice ? set_niceness(thread, former_nice_)
                                       : set_policy(thread, former_policy_, former_param_);
}

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

/// Visits the threads with this thread's name: its workers inherited it, and its priority.
template <class Visit>
void LowPriority::for_each_worker(int thread, Visit visit) const noexcept {
  try {
    const std::string name = name_of(std::to_string(thread));
    // Not std::filesystem, which ends the process if it finds no memory.
    const std::unique_ptr<DIR, CloseFolder> threads(opendir("/proc/self/task"));
    while (const dirent* const entry = threads != nullptr ? readdir(threads.get()) : nullptr) {
      const std::string text = entry->d_name;
      int worker = 0;
      std::from_chars(text.data(), text.data() + text.size(), worker);
      if (worker != 0 && worker != thread && name_of(text) == name) {
        visit(worker);
      }
    }
  } catch (const std::bad_alloc&) {
    // The rest of the workers keep their priority.
  }
}

void LowPriority::enter() {
  if (how_ == DevicePriority::kAuto) {
    how_ = others_are_busy() ? DevicePriority::kNice : DevicePriority::kIdle;
  }
  {
    std::lock_guard lock(mutex_);
    former_nice_ = niceness(0);
    former_policy_ = sched_getscheduler(0);
    sched_getparam(0, &former_param_);
    pthread_getcpuclockid(pthread_self(), &clock_);
    thread_.store(gettid(), std::memory_order_release);
  }
  if (!lowers()) {
    return;
  }
  if (!apply(0)) {  // without the lock, as in `change`
    TORCH_WARN("torchshare: cannot lower the priority of this thread (", std::strerror(errno), "); it keeps it");
  }
  make_workers();
}

void LowPriority::leave() {
  if (lowers()) {
    restore_thread(0);  // fails where may_raise_priority() is false; the thread ends anyway
  }
  std::lock_guard lock(mutex_);
  thread_.store(0, std::memory_order_release);
}

void LowPriority::change(int raises) {
  if (!lowers() || !may_raise_priority()) {
    return;
  }
  if (thread_.load(std::memory_order_acquire) == gettid()) {
    raises_ += raises;
    apply(0);  // without the lock, which it would hold while it has idle priority
    return;
  }
  std::lock_guard lock(mutex_);
  raises_ += raises;
  if (const int thread = thread_.load(std::memory_order_acquire); thread != 0) {
    apply(thread);
  }
}

/// Applies the priority given by the number of raises, and again if that number has changed meanwhile.
bool LowPriority::apply(int thread) {
  bool raised = false;
  bool succeeds = false;
  do {
    raised = raises_.load() > 0;
    succeeds = raised ? restore_thread(thread) : lower_thread(thread);
  } while (raised != (raises_.load() > 0));
  return succeeds;
}

void LowPriority::raise() {
  change(1);
}

void LowPriority::lower() {
  change(-1);
}

void LowPriority::set_unopposed(bool unopposed) {
  if (!lowers() || !may_raise_priority()) {
    return;
  }
  change(unopposed ? 1 : -1);
  std::lock_guard lock(mutex_);
  if (const int thread = thread_.load(std::memory_order_acquire); thread != 0) {
    for_each_worker(thread, [&](int worker) { unopposed ? restore_thread(worker) : lower_thread(worker); });
  }
}

void LowPriority::raise_for_good() {
  if (!lowers() || !may_raise_priority()) {
    return;  // without the lock, which the thread may hold while it leaves with idle priority
  }
  change(kForGood);
  std::lock_guard lock(mutex_);
  if (const int thread = thread_.load(std::memory_order_acquire); thread != 0) {
    for_each_worker(thread, [this](int worker) { restore_thread(worker); });
  }
}

std::optional<std::chrono::nanoseconds> LowPriority::used() const {
  timespec time{};
  if (thread_.load(std::memory_order_acquire) == 0 || clock_gettime(clock_, &time) != 0) {
    return std::nullopt;
  }
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// The second number of schedstat: the time on a run queue, in nanoseconds.
std::optional<std::chrono::nanoseconds> LowPriority::waited() const noexcept {
  const int thread = thread_.load(std::memory_order_acquire);
  if (thread == 0) {
    return std::nullopt;
  }
  try {
    std::ifstream numbers(fmt::format("/proc/self/task/{}/schedstat", thread));
    std::int64_t ran = 0;
    std::int64_t waited = 0;
    return numbers >> ran >> waited ? std::optional(std::chrono::nanoseconds(waited)) : std::nullopt;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

bool may_raise_priority() {
  static const bool may = [] {
    bool succeeds = false;
    std::thread([&] {
      const int former = sched_getscheduler(0);
      succeeds = set_policy(0, SCHED_IDLE) && set_policy(0, former);
    }).join();
    return succeeds;
  }();
  return may;
}

}  // namespace torchshare
