#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/device.h"
#include "memory/memory_budget.h"

namespace torchshare {

/// Limits the running jobs that share a device and declare no budget: each may have what it holds and an equal part of
/// what is free, less what others' declared budgets promise them; budgets that promise all of it or more count as an
/// equal part each. Divides anew when a job begins or ends; a job that is alone has no limit. Any thread.
class MemoryShares {
 public:
  /// The membership of a job, until the destructor.
  class [[nodiscard]] Member {
   public:
    /// Calls `on_change` after each change of the limit, on any job's thread.
    Member(MemoryShares& shares, std::shared_ptr<MemoryBudget> budget, bool is_declared,
           std::function<void()> on_change)
        : shares_(shares), budget_(std::move(budget)) {
      shares_.join({budget_, is_declared, std::move(on_change)});
    }
    ~Member() { shares_.leave(*budget_); }
    Member(const Member&) = delete;  // of one job
    Member& operator=(const Member&) = delete;

   private:
    MemoryShares& shares_;
    const std::shared_ptr<MemoryBudget> budget_;
  };

  /// `device` must outlive it.
  explicit MemoryShares(const Device& device) : device_(device) {}

 private:
  struct Entry {
    std::shared_ptr<MemoryBudget> budget;
    bool is_declared;
    std::function<void()> on_change;
  };

  void join(Entry entry);
  void leave(const MemoryBudget& budget);
  void divide();

  const Device& device_;
  std::mutex mutex_;  // guards members_
  std::vector<Entry> members_;
};

}  // namespace torchshare
