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
///
/// While the job could do with less, by smaller sub-batches, it is refused the last sixteenth: its next optimizer step,
/// which cannot be repeated, finds some memory left.
class MemoryBudget {
 public:
  static constexpr std::int64_t kUnlimited = INT64_MAX;

  /// `job` names it in messages.
  explicit MemoryBudget(std::string job, std::int64_t limit = kUnlimited) : job_(std::move(job)), limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;  // reservations point at it
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  const std::string& job() const { return job_; }
  std::int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  /// What is already held stays.
  void set_limit(std::int64_t limit) noexcept { limit_.store(limit, std::memory_order_relaxed); }
  /// Whether the job could do with less. The job's own thread.
  void set_flexible(bool flexible) noexcept { flexible_.store(flexible, std::memory_order_relaxed); }
  /// The number of requests that were refused.
  std::int64_t refusals() const { return refusals_.load(std::memory_order_relaxed); }
  /// Starts to measure the most that is held, see `high_water`. The job's own thread.
  void begin_high_water() noexcept { high_water_.store(held(), std::memory_order_relaxed); }
  std::int64_t high_water() const { return high_water_.load(std::memory_order_relaxed); }
  /// For tests: refuses one request, once `requests` more have been granted.
  void refuse_after(std::int64_t requests) noexcept { until_refusal_.store(requests, std::memory_order_relaxed); }
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
  std::int64_t limit_now() const noexcept;
  void release(std::int64_t bytes) noexcept { held_.fetch_sub(bytes, std::memory_order_relaxed); }

  const std::string job_;
  std::atomic<std::int64_t> limit_;
  std::atomic<bool> flexible_{false};
  std::atomic<std::int64_t> until_refusal_{-1};  // negative: never
  std::atomic<std::int64_t> refusals_{0};
  std::atomic<std::int64_t> high_water_{0};
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
