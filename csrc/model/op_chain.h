#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "model/op_profile.h"

namespace torchshare {

/// The ops of a job in the order in which they come, as far as they repeat. Not for several threads.
///
/// Note [Places]
/// A place is an op together with the `kContext - 1` ops before it. A training step repeats, so its places do, and each
/// knows which one came after it the last time: on the beaten track, moving on costs one comparison. Where the job does
/// something else (another shape, another branch) the place is looked up, or is new; after kContext ops of the old
/// way it is back on known ground. Nobody has to say where a step begins. Who does (`restart`) has places that do not
/// depend on the step before, and so knows requests of any size as soon as it has seen each size.
class OpChain {
 public:
  static constexpr std::size_t kContext = 32;
  static constexpr std::size_t kMaxPlaces = 1 << 16;  // then all is forgotten: these ops do not repeat

  struct Place {
    OpProfile profile;
    OpKind kind = OpKind::kUnknown;  // by the profile's text
    std::uint32_t next = 0;          // the place that came after it last; 0: nowhere
    std::uint32_t distance = 0;      // ops from one visit to the next
    std::uint64_t visited_at = 0;    // 0: not in this run
  };

  OpChain();
  /// With what was measured before.
  explicit OpChain(const std::vector<OpProfile>& known);

  /// Moves on to the op with this signature and returns its place, which stays where it is until the next call.
  Place& advance(std::uint64_t signature);
  /// What comes next does not depend on what came before.
  void restart();
  /// The place of the latest op.
  Place& here() { return places_[here_]; }
  /// The place with that context, or null where it was forgotten since.
  Place* find(std::uint64_t context);

  /// Ops from one visit of a place to the next, over the places of the latest round; 0 where nothing has repeated.
  std::size_t ops_per_step() const;
  /// The places visited more than once, by first visit.
  std::vector<OpProfile> profiles() const;
  std::size_t size() const { return places_.size() - 1; }

 private:
  std::uint32_t find_or_add(std::uint64_t signature);
  void forget();

  std::vector<Place> places_;  // the first is nowhere
  std::unordered_map<std::uint64_t, std::uint32_t> by_context_;
  std::array<std::uint64_t, kContext> recent_{};  // signatures, a ring
  std::uint64_t count_ = 0;
  std::uint32_t here_ = 0;
};

}  // namespace torchshare
