#include "memory/block_cache.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace torchshare {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLeastSlack = std::size_t{32} << 20;
constexpr std::chrono::seconds kPeakWindow{10};

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): addresses are computed with
}

/// False if the kernel refuses: a hole may need one mapping more than it allows.
bool unmap(std::uintptr_t begin, std::size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(pointer(begin), bytes);
  return munmap(pointer(begin), bytes) == 0;
}

}  // namespace

void* BlockCache::allocate(std::size_t bytes, Time now) noexcept {
  if (bytes > SIZE_MAX / 2) {
    return nullptr;
  }
  bytes = round_up(bytes, kPage);
  forget_old_peaks(now);
  Address block = take(bytes);
  if (block == 0) {
    block = map(bytes);
  }
  if (block == 0) {
    return nullptr;
  }
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  trim(allowed());
  ASAN_UNPOISON_MEMORY_REGION(pointer(block), bytes);
  return pointer(block);
}

void BlockCache::free(void* block, std::size_t bytes, Time now) noexcept {
  bytes = round_up(bytes, kPage);
  in_use_ -= bytes;
  insert(reinterpret_cast<Address>(block), {bytes, ++frees_});
  forget_old_peaks(now);
  trim(allowed());
}

void BlockCache::trim(std::size_t bytes) noexcept {
  while (cached_ > bytes) {
    const std::size_t before = cached_;
    unmap_oldest(cached_ - bytes);
    if (cached_ == before) {
      return;
    }
  }
}

void BlockCache::reset(std::size_t ceiling) noexcept {
  ceiling_ = ceiling;
  peak_ = in_use_;
  former_peak_ = 0;
  trim(0);
}

/// The smallest extent that fits, of several the lowest; 0 if there is none.
BlockCache::Address BlockCache::take(std::size_t bytes) noexcept {
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (fit == by_size_.end()) {
    return 0;
  }
  const Address block = fit->second;
  const auto found = extents_.find(block);
  const Extent extent = found->second;
  erase(found);
  if (extent.bytes > bytes) {
    insert(block + bytes, {extent.bytes - bytes, extent.freed});
  }
  return block;
}

/// New memory in whole huge pages, whose rest is cached; 0 if there is none.
BlockCache::Address BlockCache::map(std::size_t bytes) noexcept {
  const std::size_t whole = round_up(bytes, kHugePage);
  const auto get = [&] {
    return mmap(nullptr, whole + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  };
  void* mapped = get();
  if (mapped == MAP_FAILED && cached_ > 0) {
    trim(0);
    mapped = get();
  }
  if (mapped == MAP_FAILED) {
    return 0;
  }
  const auto begin = reinterpret_cast<Address>(mapped);
  const Address aligned = round_up(begin, kHugePage);
  if (aligned > begin) {
    unmap(begin, aligned - begin);
  }
  unmap(aligned + whole, begin + kHugePage - aligned);
  madvise(pointer(aligned), whole, MADV_HUGEPAGE);  // fewer faults, and fewer misses of the TLB
  if (whole > bytes) {
    insert(aligned + bytes, {whole - bytes, frees_});
  }
  return aligned;
}

/// Adds an extent, merged with its neighbours. Unmaps it if there is no memory to remember it.
void BlockCache::insert(Address begin, Extent extent) noexcept {
  ASAN_POISON_MEMORY_REGION(pointer(begin), extent.bytes);
  auto next = extents_.lower_bound(begin);
  if (next != extents_.end() && begin + extent.bytes == next->first) {
    extent = {extent.bytes + next->second.bytes, std::max(extent.freed, next->second.freed)};
    const auto merged = next++;
    erase(merged);
  }
  if (next != extents_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.bytes == begin) {
      begin = previous->first;
      extent = {extent.bytes + previous->second.bytes, std::max(extent.freed, previous->second.freed)};
      erase(previous);
    }
  }
  try {
    const auto added = extents_.emplace(begin, extent).first;
    try {
      by_size_.emplace(extent.bytes, begin);
    } catch (const std::bad_alloc&) {
      extents_.erase(added);
      throw;
    }
    cached_ += extent.bytes;
  } catch (const std::bad_alloc&) {
    unmap(begin, extent.bytes);
  }
}

void BlockCache::erase(Extents::iterator extent) {
  cached_ -= extent->second.bytes;
  by_size_.erase({extent->second.bytes, extent->first});
  extents_.erase(extent);
}

/// Unmaps `bytes` of the least recently freed extent, or all of it if it has less.
void BlockCache::unmap_oldest(std::size_t bytes) noexcept {
  const auto oldest = std::min_element(extents_.begin(), extents_.end(),
                                       [](const auto& a, const auto& b) { return a.second.freed < b.second.freed; });
  const auto [begin, extent] = *oldest;
  const Address end = begin + extent.bytes;
  const Address cut = std::max(begin, (end - std::min(bytes, extent.bytes)) / kHugePage * kHugePage);
  if (!unmap(cut, end - cut)) {
    return;
  }
  erase(oldest);
  if (cut > begin) {
    insert(begin, {cut - begin, extent.freed});
  }
}

void BlockCache::forget_old_peaks(Time now) {
  if (now - window_ >= kPeakWindow) {
    former_peak_ = now - window_ < 2 * kPeakWindow ? peak_ : in_use_;
    peak_ = in_use_;
    window_ = now;
  }
}

/// The bytes that may be cached.
std::size_t BlockCache::allowed() const {
  const std::size_t peak = std::max(peak_, former_peak_);
  const std::size_t most = std::min(peak + std::max(peak / 8, kLeastSlack), ceiling_);
  return most > in_use_ ? most - in_use_ : 0;
}

}  // namespace torchshare
