#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

namespace torchshare {

/// Memory in bytes.
struct SystemMemory {
  std::int64_t total = 0;
  std::int64_t available = 0;  ///< that the kernel can still give to this process

  bool is_short() const { return available < total / 20; }
};

/// The machine's memory (/proc/meminfo), or that of the control group (version 2) with the least available, if it has a
/// limit. Empty if the files under `root` cannot be read.
std::optional<SystemMemory> system_memory(const std::filesystem::path& root = "/");

/// How many times the system was found to be short of memory. Any thread.
class ShortageCount {
 public:
  explicit ShortageCount(std::filesystem::path root = "/") : root_(std::move(root)) {}

  /// The count; looks again if the last look was 100 ms ago.
  std::uint64_t look(std::chrono::steady_clock::time_point now) noexcept;
  /// Counts one that was noticed otherwise.
  void report() { found_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const std::filesystem::path root_;
  std::atomic<std::chrono::steady_clock::time_point> next_look_{};
  std::atomic<std::uint64_t> found_{0};
};

}  // namespace torchshare
