#include "memory/memory_budget.h"

#include <fmt/format.h>

namespace torchshare {
namespace {

double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

void MemoryBudget::reserve(std::int64_t bytes) {
  const std::int64_t limit = limit_now();
  const bool refused = until_refusal_.load(std::memory_order_relaxed) >= 0 && until_refusal_.fetch_sub(1) == 0;
  std::int64_t held = held_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit - held || refused) {
      refusals_.fetch_add(1, std::memory_order_relaxed);
      throw BudgetExceeded(
          {__func__, __FILE__, __LINE__},
          fmt::format("job '{}': memory budget exceeded: requested {:.2f} MiB, {:.2f} of {:.2f} MiB in use", job_,
                      mib(bytes), mib(held), mib(limit)));
    }
  } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
}

std::int64_t MemoryBudget::limit_now() const noexcept {
  const std::int64_t limit = this->limit();
  return limit != kUnlimited && flexible_.load(std::memory_order_relaxed) ? limit - limit / 16 : limit;
}

void MemoryBudget::record_peak() noexcept {
  const std::int64_t held = this->held();
  for (std::atomic<std::int64_t>* const most : {&peak_, &high_water_}) {
    std::int64_t known = most->load(std::memory_order_relaxed);
    while (known < held && !most->compare_exchange_weak(known, held, std::memory_order_relaxed)) {
    }
  }
}

Reservation::Reservation(std::shared_ptr<MemoryBudget> budget, std::int64_t bytes) : budget_(std::move(budget)) {
  if (budget_ != nullptr) {
    budget_->reserve(bytes);
  }
  bytes_ = bytes;
}

Reservation::~Reservation() {
  if (budget_ != nullptr) {
    budget_->release(bytes_);
  }
}

}  // namespace torchshare
