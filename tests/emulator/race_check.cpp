#include "race_check.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <iterator>

namespace emulator {
namespace {

std::string thread_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

bool conflict(const Access& a, const Access& b) {
  return (a.write || b.write) && a.begin < b.end && b.begin < a.end;
}

const char* verb(bool write) {
  return write ? "writes" : "reads";
}

}  // namespace

void VectorClock::advance(std::size_t stream) {
  counts_.resize(std::max(counts_.size(), stream + 1));
  ++counts_[stream];
}

void VectorClock::join(const VectorClock& other) {
  counts_.resize(std::max(counts_.size(), other.counts_.size()));
  for (std::size_t stream = 0; stream < other.counts_.size(); ++stream) {
    counts_[stream] = std::max(counts_[stream], other.counts_[stream]);
  }
}

RaceCheck& RaceCheck::get() {
  static RaceCheck* const check = new RaceCheck;  // streams outlive static objects
  return *check;
}

RaceCheck::Cells::iterator RaceCheck::split(std::uintptr_t at) {
  auto after = cells_.lower_bound(at);
  if (after != cells_.begin()) {
    const auto before = std::prev(after);
    if (before->second.end > at) {
      after = cells_.emplace_hint(after, at, before->second);
      before->second.end = at;
    }
  }
  return after;
}

void RaceCheck::compare(const Access& access, const Place& now, const Place& before, bool wrote,
                        const VectorClock& clock) {
  if (before.count <= clock.of(before.stream)) {
    return;
  }
  report(
      fmt::format("race: {} (stream {}, enqueued by thread {}) {} memory at {:#x}, and {} (stream {}, enqueued by "
                  "thread {}) {} it, with no order between them",
                  access.name, now.stream, now.thread, verb(access.write), access.begin, before.name, before.stream,
                  before.thread, verb(wrote)));
}

void RaceCheck::check(const std::vector<Access>& accesses, std::size_t stream, const VectorClock& clock) {
  if (accesses.empty()) {
    return;
  }
  Place now{.stream = stream, .count = clock.of(stream), .name = "", .thread = thread_name()};
  for (const Access& access : accesses) {
    now.name = access.name;
    auto cell = split(access.begin);
    split(access.end);
    std::uintptr_t covered = access.begin;
    for (; cell != cells_.end() && cell->first < access.end; ++cell) {
      if (!access.write && covered < cell->first) {  // never accessed before
        cells_.emplace_hint(cell, covered, Cell{.end = cell->first, .write = {}, .reads = {now}});
      }
      covered = cell->second.end;
      compare(access, now, cell->second.write, true, clock);
      auto& reads = cell->second.reads;
      if (access.write) {
        for (const Place& read : reads) {
          compare(access, now, read, false, clock);
        }
      } else {
        std::erase_if(reads, [&](const Place& read) { return read.stream == stream; });
        reads.push_back(now);
      }
    }
    if (access.write) {
      cells_.erase(cells_.lower_bound(access.begin), cells_.lower_bound(access.end));
      cells_.emplace(access.begin, Cell{.end = access.end, .write = now, .reads = {}});
    } else if (covered < access.end) {
      cells_.emplace(covered, Cell{.end = access.end, .write = {}, .reads = {now}});
    }
  }
}

void RaceCheck::forget(std::uintptr_t begin, std::uintptr_t end) {
  const auto first = split(begin);
  split(end);
  cells_.erase(first, cells_.lower_bound(end));
}

void RaceCheck::check_graph(const std::vector<std::vector<Access>>& nodes,
                            const std::vector<std::vector<bool>>& before) {
  for (std::size_t b = 0; b < nodes.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (before[b][a]) {
        continue;
      }
      for (const Access& x : nodes[a]) {
        for (const Access& y : nodes[b]) {
          if (conflict(x, y)) {
            report(
                fmt::format("race: in a captured graph, {} {} memory at {:#x} and {} {} it, with no order between them",
                            x.name, verb(x.write), std::max(x.begin, y.begin), y.name, verb(y.write)));
          }
        }
      }
    }
  }
}

void RaceCheck::report(std::string race) {
  std::lock_guard lock(reports_mutex_);
  if (reports_.size() < 100) {
    reports_.push_back(std::move(race));
  }
}

std::string RaceCheck::take() {
  std::lock_guard lock(reports_mutex_);
  if (reports_.empty()) {
    return {};
  }
  std::string first = std::move(reports_.front());
  reports_.pop_front();
  return first;
}

}  // namespace emulator
