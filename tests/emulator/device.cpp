#include "device.h"

#include <atomic>
#include <cstdlib>
#include <random>
#include <vector>

namespace emulator {
namespace {

std::uint64_t variable(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 0) : otherwise;
}

std::atomic<int> fatal_error{0};

}  // namespace

const Settings& Settings::get() {
  static const Settings settings{
      .devices = static_cast<int>(variable("EMULATOR_DEVICES", 2)),
      .slots = static_cast<int>(variable("EMULATOR_SLOTS", 4)),
      .kernel = std::chrono::microseconds(variable("EMULATOR_KERNEL_US", 0)),
      .jitter = std::chrono::microseconds(variable("EMULATOR_JITTER_US", 0)),
      .memory = variable("EMULATOR_MEMORY_MIB", 8192) << 20,
      .queue = variable("EMULATOR_QUEUE", 1024),
      .trace = variable("EMULATOR_TRACE", 0) != 0,
  };
  return settings;
}

int& current_device() {
  static thread_local int device = 0;
  return device;
}

Slots& Slots::of(int device) {
  static auto* const slots = new std::vector<Slots>(static_cast<std::size_t>(Settings::get().devices));  // for good
  return slots->at(static_cast<std::size_t>(device));
}

Slots::Claim Slots::claim(int priority) {
  std::lock_guard lock(mutex_);
  return *line_.emplace(priority, ++last_).first;
}

void Slots::take(const Claim& claim) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return busy_ < Settings::get().slots && *line_.begin() == claim; });
  line_.erase(claim);
  ++busy_;
  changed_.notify_all();  // the next in line may find another slot
}

void Slots::release() {
  std::lock_guard lock(mutex_);
  --busy_;
  changed_.notify_all();
}

void lose_device(int error) {
  int none = 0;
  fatal_error.compare_exchange_strong(none, error);
}

int lost_by() {
  return fatal_error.load();
}

void restore_device() {
  fatal_error = 0;
}

std::uint64_t random_number(std::uint64_t below) {
  static const std::uint64_t seed = variable("EMULATOR_SEED", 1);
  static std::atomic<std::uint64_t> threads{0};
  static thread_local std::mt19937_64 engine(seed + 1'000'003 * threads.fetch_add(1));
  return engine() % below;
}

}  // namespace emulator
