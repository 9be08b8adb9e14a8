#pragma once

#include <atomic>
#include <utility>

namespace torchshare {

/// A queue with many producers and one consumer at a time. `put` takes no lock. `put` and `drain` are sequentially
/// consistent: if a consumer stores a request and then drains, and a producer puts and then checks for requests, at
/// least one of them sees the other.
template <class Item>
class Inbox {
 public:
  Inbox() = default;
  ~Inbox() {
    drain([](const Item&) {});
  }
  Inbox(const Inbox&) = delete;  // other threads put into it
  Inbox& operator=(const Inbox&) = delete;

  /// Throws std::bad_alloc.
  void put(Item item) {
    Node* const node = new Node{std::move(item), newest_.load(std::memory_order_relaxed)};
    while (!newest_.compare_exchange_weak(node->older, node, std::memory_order_seq_cst, std::memory_order_relaxed)) {
    }
  }

  bool is_empty() const { return newest_.load(std::memory_order_seq_cst) == nullptr; }

  /// Takes all items, in the order in which they were put. Allocates nothing; `use` must not throw.
  template <class Use>
  void drain(Use use) {
    Node* oldest = nullptr;
    for (Node* node = newest_.exchange(nullptr, std::memory_order_seq_cst); node != nullptr;) {
      Node* const older = std::exchange(node->older, oldest);
      oldest = std::exchange(node, older);
    }
    while (oldest != nullptr) {
      use(std::as_const(oldest->item));
      delete std::exchange(oldest, oldest->older);
    }
  }

 private:
  struct Node {
    Item item;
    Node* older;
  };

  std::atomic<Node*> newest_{nullptr};
};

}  // namespace torchshare
