#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "model/op_profile.h"

namespace torchshare {

/// The repeating sequence of a job's ops. Not thread-safe.
///
/// Note [Places]
/// A place is an op together with the `kContext - 1` ops before it. Training steps repeat, so places do, and each place
/// remembers its successor: on the fast path, advancing costs one comparison. When the job takes another path (another
/// shape, another branch), the place is looked up or added; kContext ops after returning to the old path, known places
/// are found again. Step boundaries need not be marked. If they are (`restart`), places do not depend on the step
/// before, so requests of mixed sizes are known as soon as each size was seen once.
class OpChain {
 public:
  static constexpr std::size_t kContext = 32;
  static constexpr std::size_t kMaxPlaces = 1 << 16;  // with more places all are dropped: these ops do not repeat

  struct Place {
    OpProfile profile;
    OpKind kind = OpKind::kUnknown;  // from the profile's text
    std::uint32_t next = 0;          // the place that followed last time; 0: none
    std::uint32_t distance = 0;      // ops from one visit to the next
    std::uint64_t visited_at = 0;    // 0: not in this run
  };

  OpChain();
  /// Starts with earlier measurements.
  explicit OpChain(const std::vector<OpProfile>& known);

  /// Advances to the op with this signature and returns its place, valid until the next call.
  Place& advance(std::uint64_t signature);
  /// Declares that the next op does not depend on the ops before it.
  void restart();
  /// The place of the latest op.
  Place& here() { return places_[here_]; }
  /// The place with that context, or null if it was dropped.
  Place* find(std::uint64_t context);

  /// Ops from one visit of a place to the next, over the places of the latest round; 0 if nothing has repeated.
  std::size_t ops_per_step() const;
  /// The places visited more than once, by first visit.
  std::vector<OpProfile> profiles() const;
  std::size_t size() const { return places_.size() - 1; }

 private:
  std::uint32_t find_or_add(std::uint64_t signature);
  void forget();

  std::vector<Place> places_;  // the first one is a sentinel
  std::unordered_map<std::uint64_t, std::uint32_t> by_context_;
  std::array<std::uint64_t, kContext> recent_{};  // signatures, a ring
  std::uint64_t count_ = 0;
  std::uint32_t here_ = 0;
};

}  // namespace torchshare
