#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace torchshare {

/// A queue with many producers and one consumer at a time. `put` takes no lock. `put` and `take` are sequentially
/// consistent: if a consumer stores a request and then takes, and a producer puts and then checks for requests, at
/// least one of them sees the other.
template <class Item>
class Inbox {
 public:
  Inbox() = default;
  ~Inbox() { take(); }
  Inbox(const Inbox&) = delete;  // other threads put into it
  Inbox& operator=(const Inbox&) = delete;

  void put(Item item) {
    Node* const node = new Node{std::move(item), newest_.load(std::memory_order_relaxed)};
    while (!newest_.compare_exchange_weak(node->older, node, std::memory_order_seq_cst, std::memory_order_relaxed)) {
    }
  }

  /// Takes all items, in the order in which they were put.
  std::vector<Item> take() {
    std::vector<Item> items;
    for (Node* node = newest_.exchange(nullptr, std::memory_order_seq_cst); node != nullptr;) {
      items.push_back(std::move(node->item));
      delete std::exchange(node, node->older);
    }
    std::reverse(items.begin(), items.end());
    return items;
  }

 private:
  struct Node {
    Item item;
    Node* older;
  };

  std::atomic<Node*> newest_{nullptr};
};

}  // namespace torchshare
