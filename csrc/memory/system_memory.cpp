#include "memory/system_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>
#include <string>

namespace torchshare {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{100};

/// The number after `name` at the start of a line.
std::optional<std::int64_t> field(const std::filesystem::path& file, const std::string& name) {
  std::ifstream lines(file);
  std::string word;
  std::int64_t value = 0;
  while (lines >> word) {
    if (word == name && lines >> value) {
      return value;
    }
    lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

/// The number in a file; empty if there is none, as in a limit that reads "max".
std::optional<std::int64_t> number(const std::filesystem::path& file) {
  std::ifstream text(file);
  std::int64_t value = 0;
  return text >> value ? std::optional(value) : std::nullopt;
}

/// The folder of this process's control group below the one at which `root` mounts them.
std::filesystem::path control_group(const std::filesystem::path& root) {
  std::ifstream lines(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with("0::/")) {
      return line.substr(4);
    }
  }
  return {};
}

SystemMemory least(SystemMemory memory, const std::filesystem::path& group) {
  const auto limit = number(group / "memory.max");
  const auto used = number(group / "memory.current");
  if (!limit || !used) {
    return memory;
  }
  const std::int64_t cache = field(group / "memory.stat", "inactive_file").value_or(0);  // reclaimed first
  const SystemMemory here{.total = *limit, .available = std::max<std::int64_t>(0, *limit - *used + cache)};
  return here.available < memory.available ? here : memory;
}

}  // namespace

std::optional<SystemMemory> system_memory(const std::filesystem::path& root) {
  const auto total = field(root / "proc/meminfo", "MemTotal:");
  const auto available = field(root / "proc/meminfo", "MemAvailable:");
  if (!total || !available) {
    return std::nullopt;
  }
  SystemMemory memory{.total = *total << 10, .available = *available << 10};
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  for (std::filesystem::path group = control_group(root); !group.empty(); group = group.parent_path()) {
    memory = least(memory, groups / group);
  }
  return least(memory, groups);
}

std::uint64_t ShortageCount::look(std::chrono::steady_clock::time_point now) noexcept {
  auto due = next_look_.load(std::memory_order_relaxed);
  if (now >= due && next_look_.compare_exchange_strong(due, now + kBetweenLooks, std::memory_order_relaxed)) {
    try {
      const auto memory = system_memory(root_);
      if (memory && memory->is_short()) {
        report();
      }
    } catch (const std::bad_alloc&) {
      report();
    }
  }
  return found_.load(std::memory_order_relaxed);
}

}  // namespace torchshare
