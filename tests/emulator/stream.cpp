#include "stream.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "memory.h"

namespace emulator {
namespace {

struct Registry {
  std::mutex mutex;  // guards every field below
  std::vector<std::shared_ptr<Stream>> streams;
};

Registry& registry() {
  static Registry* const all = new Registry;  // streams outlive static objects
  return *all;
}

/// Whether all memory that the kernel touches is the device's or pinned.
bool can_access(const Work& work, int device) {
  return std::all_of(work.accesses.begin(), work.accesses.end(), [&](const Access& access) {
    return memory::contains(access.begin, access.end) && memory::is_reachable(access.begin, device);
  });
}

}  // namespace

void Completion::complete() {
  std::lock_guard lock(mutex_);
  done_ = true;
  at_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Completion::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

void Completion::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
}

std::chrono::steady_clock::time_point Completion::at() const {
  std::lock_guard lock(mutex_);
  return at_;
}

void execute(const Work& work, int device, int priority, std::optional<Slots::Claim> claim,
             const std::function<void()>& next) {
  if (work.awaits) {
    work.awaits->wait();
  }
  if (const auto jitter = Settings::get().jitter; jitter.count() > 0 && random_number(4) == 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(random_number(static_cast<std::uint64_t>(jitter.count()))));
  }
  if (work.takes_slot) {
    Slots::of(device).take(claim ? *claim : Slots::of(device).claim(priority));
  }
  if (work.takes_slot && !can_access(work, device)) {
    lose_device(cudaErrorIllegalAddress);
  }
  if (lost_by() == 0) {
    const auto begin = std::chrono::steady_clock::now();
    if (work.run) {
      work.run();
    }
    if (work.duration.count() > 0) {
      std::this_thread::sleep_until(begin + work.duration);
    }
  }
  next();
  if (work.takes_slot) {
    Slots::of(device).release();
  }
  if (work.completes) {
    work.completes->complete();
  }
}

std::shared_ptr<Stream> Stream::create(int device, int priority, unsigned flags) {
  const int clamped = std::clamp(priority, kHighestPriority, kLowestPriority);
  const std::shared_ptr<Stream> stream(new Stream(device, clamped, flags));
  std::lock_guard lock(registry().mutex);
  registry().streams.push_back(stream);
  return stream;
}

std::shared_ptr<Stream> Stream::legacy(int device) {
  static auto* const streams = [] {
    auto* const all = new std::vector<std::shared_ptr<Stream>>;
    for (int each = 0; each < Settings::get().devices; ++each) {
      all->push_back(create(each, 0, cudaStreamDefault));
    }
    return all;
  }();
  return streams->at(static_cast<std::size_t>(device));
}

std::shared_ptr<Stream> Stream::of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return legacy(current_device());
  }
  std::lock_guard lock(registry().mutex);
  const auto& streams = registry().streams;
  const auto found =
      std::find_if(streams.begin(), streams.end(), [&](const auto& stream) { return stream->handle() == handle; });
  return found == streams.end() ? nullptr : *found;
}

std::vector<std::shared_ptr<Stream>> Stream::all(int device) {
  std::lock_guard lock(registry().mutex);
  std::vector<std::shared_ptr<Stream>> found;
  std::copy_if(registry().streams.begin(), registry().streams.end(), std::back_inserter(found),
               [&](const auto& stream) { return stream->device() == device; });
  return found;
}

void synchronize_device(int device) {
  for (const auto& stream : Stream::all(device)) {
    stream->synchronize();
  }
}

void Stream::destroy() {
  {
    std::lock_guard lock(registry().mutex);
    std::erase(registry().streams, shared_from_this());
  }
  std::lock_guard lock(mutex_);
  destroyed_ = true;
  changed_.notify_all();
}

void Stream::await_implicitly() {
  const auto others = is_legacy() ? all(device_) : std::vector{legacy(device_)};
  for (const auto& other : others) {
    if (other.get() != this && other->blocking() && !other->idle()) {
      const auto tail = std::make_shared<Completion>();
      other->push({.name = "implicit record", .completes = tail});
      push({.name = "implicit wait", .awaits = tail});
    }
  }
}

void Stream::enqueue(Work work) {
  if (blocking()) {
    await_implicitly();
  }
  push(std::move(work));
}

void Stream::push(Work work) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < Settings::get().queue; });
  }
  RaceCheck& races = RaceCheck::get();
  std::lock_guard order(races.mutex);
  if (!number_) {
    static std::size_t streams = 0;
    number_ = streams++;
  }
  clock_.join(races.host);
  clock_.advance(*number_);
  if (work.awaits) {
    clock_.join(work.awaits->clock);
  }
  if (work.completes) {
    work.completes->clock = clock_;
  }
  races.check(work.accesses, *number_, clock_);

  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  ++enqueued_;
  changed_.notify_all();
  if (!started_) {
    started_ = true;
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  }
}

void Stream::work() {
  pthread_setname_np(pthread_self(), "emulated stream");
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  std::optional<Slots::Claim> claim;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return destroyed_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    {
      const Work current = std::move(queue_.front());
      queue_.pop_front();
      changed_.notify_all();  // the queue has room
      lock.unlock();
      execute(current, device_, priority_, std::exchange(claim, std::nullopt), [&] {
        std::lock_guard again(mutex_);
        if (!queue_.empty() && queue_.front().takes_slot) {
          claim = Slots::of(device_).claim(priority_);
        }
      });
    }  // lets go of what the work holds before it counts as ended
    lock.lock();
    ++ended_;
    changed_.notify_all();
  }
}

bool Stream::idle() const {
  std::lock_guard lock(mutex_);
  return ended_ == enqueued_;
}

bool Stream::query() {
  std::lock_guard order(RaceCheck::get().mutex);
  const bool ended = idle();
  if (ended) {
    RaceCheck::get().host.join(clock_);
  }
  return ended;
}

void Stream::synchronize() {
  std::unique_lock order(RaceCheck::get().mutex);
  const VectorClock seen = clock_;
  {
    std::unique_lock lock(mutex_);
    const std::uint64_t until = enqueued_;
    order.unlock();
    changed_.wait(lock, [&] { return ended_ >= until; });
  }
  order.lock();
  RaceCheck::get().host.join(seen);
}

}  // namespace emulator
