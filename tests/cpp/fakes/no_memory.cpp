#include "fakes/no_memory.h"

#include <cstdlib>
#include <new>

namespace torchshare {

thread_local int news_left = -1;

}  // namespace torchshare

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  int& left = torchshare::news_left;
  if (left == 0) {
    throw std::bad_alloc();
  }
  left -= left > 0 ? 1 : 0;
  void* const block = std::malloc(bytes);
  return block != nullptr ? block : throw std::bad_alloc();
}

[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}

[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}

[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
