#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "torchshare/errors.h"

namespace torchshare {

/// The bytes of tensors that a job holds, its peak, and its limit; and the most that was cached for it. Any thread; a
/// refused request changes nothing.
class MemoryBudget {
 public:
  static constexpr std::int64_t kUnlimited = INT64_MAX;

  /// `job` names it in messages.
  explicit MemoryBudget(std::string job, std::int64_t limit = kUnlimited) : job_(std::move(job)), limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;  // reservations point at it
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  const std::string& job() const { return job_; }
  std::int64_t limit() const { return limit_; }
  std::int64_t held() const { return held_.load(std::memory_order_relaxed); }
  std::int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  /// Called once reserved bytes are allocated: the device may refuse what the budget admits.
  void record_peak() noexcept;
  std::int64_t peak_cached() const { return peak_cached_.load(std::memory_order_relaxed); }
  /// Called under the lock of the cache.
  void record_cached(std::int64_t bytes) noexcept {
    peak_cached_.store(std::max(bytes, peak_cached()), std::memory_order_relaxed);
  }

 private:
  friend class Reservation;
  void reserve(std::int64_t bytes);
  void release(std::int64_t bytes) noexcept { held_.fetch_sub(bytes, std::memory_order_relaxed); }

  const std::string job_;
  const std::int64_t limit_;
  std::atomic<std::int64_t> held_{0};
  std::atomic<std::int64_t> peak_{0};
  std::atomic<std::int64_t> peak_cached_{0};
};

/// Bytes of a budget, until the destructor; of none if `budget` is null.
class [[nodiscard]] Reservation {
 public:
  Reservation() = default;
  /// Throws BudgetExceeded.
  Reservation(std::shared_ptr<MemoryBudget> budget, std::int64_t bytes);
  ~Reservation();
  Reservation(Reservation&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::int64_t bytes_ = 0;
};

}  // namespace torchshare
