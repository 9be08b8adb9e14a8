#include "model/op_chain.h"

#include <algorithm>

namespace torchshare {

OpChain::OpChain() : places_(1) {}

OpChain::OpChain(const std::vector<OpProfile>& known) : OpChain() {
  for (const OpProfile& profile : known) {
    if (by_context_.emplace(profile.context, places_.size()).second) {
      places_.push_back({.profile = profile, .kind = op_kind(profile.text)});
    }
  }
}

OpChain::Place& OpChain::advance(std::uint64_t signature) {
  recent_[++count_ % kContext] = signature;
  const std::uint32_t guess = places_[here_].next;
  if (guess == 0 || places_[guess].profile.signature != signature) [[unlikely]] {
    const std::uint32_t found = find_or_add(signature);
    places_[here_].next = found;
    here_ = found;
  } else {
    here_ = guess;
  }
  Place& place = places_[here_];
  place.distance = place.visited_at != 0 ? static_cast<std::uint32_t>(count_ - place.visited_at) : 0;
  place.visited_at = count_;
  return place;
}

OpChain::Place* OpChain::find(std::uint64_t context) {
  const auto found = by_context_.find(context);
  return found != by_context_.end() ? &places_[found->second] : nullptr;
}

void OpChain::restart() {
  recent_.fill(0);
  here_ = 0;
}

std::uint32_t OpChain::find_or_add(std::uint64_t signature) {
  std::uint64_t context = 0;
  for (std::uint64_t i = 1; i <= kContext; ++i) {
    context = mix(context, recent_[(count_ + i) % kContext]);
  }
  if (places_.size() > kMaxPlaces && !by_context_.contains(context)) {
    forget();
  }
  const auto [entry, is_new] = by_context_.emplace(context, places_.size());
  if (is_new) {
    places_.push_back({.profile = {.signature = signature, .context = context}});
  }
  return entry->second;
}

void OpChain::forget() {
  places_.resize(1);
  places_[0].next = 0;
  by_context_.clear();
  here_ = 0;
}

std::size_t OpChain::ops_per_step() const {
  std::vector<std::uint32_t> distances;
  for (const Place& place : places_) {
    if (place.distance > 0 && count_ - place.visited_at < place.distance) {
      distances.push_back(place.distance);
    }
  }
  if (distances.empty()) {
    return 0;
  }
  const auto middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
  std::nth_element(distances.begin(), middle, distances.end());
  return *middle;
}

std::vector<OpProfile> OpChain::profiles() const {
  std::vector<OpProfile> profiles;
  for (const Place& place : places_) {
    if (place.profile.duration.count > 1) {
      profiles.push_back(place.profile);
    }
  }
  return profiles;
}

}  // namespace torchshare
