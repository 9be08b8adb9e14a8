#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace torchshare {

/// An implementation: its name and its factory.
template <typename Maker>
using Named = std::pair<std::string_view, Maker>;

template <typename Maker, std::size_t count>
std::vector<std::string_view> names_of(const Named<Maker> (&all)[count]) {
  std::vector<std::string_view> names;
  for (const auto& [name, maker] : all) {
    names.push_back(name);
  }
  return names;
}

/// The factory of that name. Throws std::invalid_argument that lists the names; `what` says what they name.
template <typename Maker, std::size_t count>
Maker find_named(const Named<Maker> (&all)[count], std::string_view what, std::string_view name) {
  for (const auto& [known, maker] : all) {
    if (known == name) {
      return maker;
    }
  }
  throw std::invalid_argument(
      fmt::format("{} must be one of {}, got '{}'", what, fmt::join(names_of(all), ", "), name));
}

}  // namespace torchshare
