#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace emulator {

/// A range of memory that one piece of work reads or writes.
struct Access {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool write;
  const char* name;  ///< of the kernel or copy; outlives the process's use of the device
};

/// How much of each stream's work is known to have ended: entry s counts the first pieces of work of stream s.
class VectorClock {
 public:
  std::uint64_t of(std::size_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
  void advance(std::size_t stream);
  void join(const VectorClock& other);

 private:
  std::vector<std::uint64_t> counts_;
};

/// Finds conflicting accesses of memory that no event, stream order, host wait or graph edge puts in order.
///
/// What orders work is decided when the host calls, so the check runs there too: it does not depend on how fast the
/// device runs, and finds a race that did not happen this time. All threads of the host count as one: where one thread
/// has waited, work that any thread enqueues later comes after. (Races between host threads are ThreadSanitizer's
/// part.) Any thread.
class RaceCheck {
 public:
  static RaceCheck& get();

  /// Guards every clock and the fields below. Held while work enters a stream, so that the queue has the clock's order.
  std::mutex mutex;
  VectorClock host;

  /// With `mutex` held: `accesses` come after what `clock`, of work in `stream`, counts.
  void check(const std::vector<Access>& accesses, std::size_t stream, const VectorClock& clock);
  /// With `mutex` held: the range is no longer allocated.
  void forget(std::uintptr_t begin, std::uintptr_t end);
  /// Compares the nodes of a graph with each other. before[b][a]: edges lead from node a to node b.
  void check_graph(const std::vector<std::vector<Access>>& nodes, const std::vector<std::vector<bool>>& before);

  /// Keeps the text for `take`, or drops it where 100 are kept.
  void report(std::string race);
  /// The oldest report that was not taken, or an empty text.
  std::string take();

 private:
  struct Place {
    std::size_t stream = 0;
    std::uint64_t count = 0;  // 0: no access
    const char* name = "";
    std::string thread = {};  // of the host that enqueued it
  };
  struct Cell {
    std::uintptr_t end = 0;
    Place write;
    std::vector<Place> reads;  // since the write, the last of each stream
  };
  using Cells = std::map<std::uintptr_t, Cell>;

  Cells::iterator split(std::uintptr_t at);
  void compare(const Access& access, const Place& now, const Place& before, bool wrote, const VectorClock& clock);

  Cells cells_;
  std::mutex reports_mutex_;  // guards reports_
  std::deque<std::string> reports_;
};

}  // namespace emulator
