#include "planner/queue_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "planner/pair_splits.h"

namespace torchshare {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
using Index = std::size_t;

/// A job beside another: its slowdown and its sub-batches.
struct Together {
  double slowdown = kInfinite;
  int sub_batches = 1;
};

class QueueSearch {
 public:
  QueueSearch(const std::vector<PlannedJob>& jobs, const std::vector<QueuedPair>& pairs, const QueueOptions& options)
      : jobs_(jobs), options_(options), together_(jobs.size(), std::vector<Together>(jobs.size())) {
    for (const PlannedJob& job : jobs) {
      check(job);
      alone_splits_.push_back(split_alone(job, options.memory.value_or(kInfinite)));
      remaining_.push_back(job.alone(alone_splits_.back()));
    }
    for (const QueuedPair& pair : pairs) {
      choose_splits(pair);
    }
    shortest_first_.resize(jobs.size());
    std::iota(shortest_first_.begin(), shortest_first_.end(), Index{0});
    std::sort(shortest_first_.begin(), shortest_first_.end(),
              [this](Index a, Index b) { return remaining_[a] < remaining_[b]; });
    waits_.assign(jobs.size(), true);
    ends_.resize(jobs.size());
  }

  QueuePlan best() {
    run_next(std::nullopt, 0, 0);
    best_.exact = nodes_ <= options_.max_nodes;
    return std::move(best_);
  }

 private:
  void choose_splits(const QueuedPair& pair) {
    if (pair.a >= jobs_.size() || pair.b >= jobs_.size() || pair.a == pair.b) {
      throw std::invalid_argument(
          fmt::format("a pair must name two of the {} jobs, got {} and {}", jobs_.size(), pair.a, pair.b));
    }
    PlannedJob a = jobs_[pair.a];
    PlannedJob b = jobs_[pair.b];
    a.ratios = pair.a_ratios;
    b.ratios = pair.b_ratios;
    const std::vector<SplitSize> a_sizes = sizes(a, alone_splits_[pair.a]);
    const std::vector<SplitSize> b_sizes = sizes(b, alone_splits_[pair.b]);
    const auto best =
        best_splits({remaining_[pair.a], a_sizes}, {remaining_[pair.b], b_sizes}, options_.memory.value_or(kInfinite));
    if (best) {
      together_[pair.a][pair.b] = {best->a.slowdown, best->a.sub_batches};
      together_[pair.b][pair.a] = {best->b.slowdown, best->b.sub_batches};
    }
  }

  /// The sizes in which `job` may run beside another, from the one that it has alone.
  static std::vector<SplitSize> sizes(const PlannedJob& job, Index alone) {
    std::vector<SplitSize> found;
    for (Index k = alone; k < job.ratios.size(); ++k) {
      found.push_back({1 << k, slowdown(job, k, alone), job.peak(k)});
    }
    return found;
  }

  /// `resident` runs, if any; at `now`, with `sum` of the ends so far.
  void run_next(std::optional<Index> resident, double now, double sum) {
    const auto left = static_cast<double>(std::count(waits_.begin(), waits_.end(), true));
    if (!resident && left == 0) {
      keep(sum);
      return;
    }
    if (++nodes_ > options_.max_nodes || lower_bound(resident, now, sum) >= best_sum_) {
      return;
    }
    for (const Index job : shortest_first_) {
      if (!waits_[job]) {
        continue;
      }
      waits_[job] = false;
      if (!resident) {
        run_next(job, now, sum);
      } else if (together_[job][*resident].slowdown < kInfinite) {
        run_both(*resident, job, now, sum);
      }
      waits_[job] = true;
    }
    if (resident) {
      run_alone(*resident, now, sum);
    }
  }

  void run_alone(Index job, double now, double sum) {
    const double end = now + remaining_[job];
    pieces_.push_back({job, {}, 1 << alone_splits_[job], now, end});
    ends_[job] = end;
    run_next({}, end, sum + end);
    pieces_.pop_back();
  }

  void run_both(Index a, Index b, double now, double sum) {
    const double left_a = remaining_[a];
    const double left_b = remaining_[b];
    const double slow_a = together_[a][b].slowdown;
    const double slow_b = together_[b][a].slowdown;
    const double time = std::min(left_a * slow_a, left_b * slow_b);
    const double end = now + time;
    const bool a_ends = left_a * slow_a <= left_b * slow_b;
    const Index ends = a_ends ? a : b;
    const Index stays = a_ends ? b : a;
    pieces_.push_back({a, b, together_[a][b].sub_batches, now, end});
    pieces_.push_back({b, a, together_[b][a].sub_batches, now, end});
    ends_[ends] = end;
    remaining_[ends] = 0;
    remaining_[stays] = std::max(0.0, (a_ends ? left_b - time / slow_b : left_a - time / slow_a));
    run_next(stays, end, sum + end);
    remaining_[a] = left_a;
    remaining_[b] = left_b;
    pieces_.pop_back();
    pieces_.pop_back();
  }

  /// A lower bound on the sum of ends: two devices do the remaining work, shortest first, without interference.
  double lower_bound(std::optional<Index> resident, double now, double sum) {
    left_.clear();
    for (Index job = 0; job < jobs_.size(); ++job) {
      if (waits_[job] || job == resident) {
        left_.push_back(remaining_[job]);
      }
    }
    std::sort(left_.begin(), left_.end());
    double devices[2] = {now, now};
    for (Index i = 0; i < left_.size(); ++i) {
      sum += devices[i % 2] += left_[i];
    }
    return sum;
  }

  void keep(double sum) {
    if (sum < best_sum_) {
      best_sum_ = sum;
      best_.pieces = pieces_;
      std::erase_if(best_.pieces, [](const QueuePiece& piece) { return piece.end <= piece.begin; });
      best_.ends = ends_;
    }
  }

  const std::vector<PlannedJob>& jobs_;
  const QueueOptions& options_;
  std::vector<Index> alone_splits_;
  std::vector<std::vector<Together>> together_;  // [job][partner]
  std::vector<Index> shortest_first_;
  // The state of the search.
  std::vector<bool> waits_;
  std::vector<double> remaining_;  // seconds alone
  std::vector<double> ends_;
  std::vector<QueuePiece> pieces_;
  std::vector<double> left_;
  std::uint64_t nodes_ = 0;
  double best_sum_ = kInfinite;
  QueuePlan best_;
};

}  // namespace

Seconds QueuePlan::average() const {
  return ends.empty() ? 0 : std::accumulate(ends.begin(), ends.end(), 0.0) / static_cast<double>(ends.size());
}

QueuePlan plan_queue(const std::vector<PlannedJob>& jobs, const std::vector<QueuedPair>& pairs,
                     const QueueOptions& options) {
  return QueueSearch(jobs, pairs, options).best();
}

}  // namespace torchshare
