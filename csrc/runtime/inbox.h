#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace torchshare {

/// What many threads put in and one at a time takes out. Putting takes no lock. Both are in the one order of all
/// seq_cst operations: who stores a wish and then takes misses nothing of those who put and then look for wishes.
template <class Item>
class Inbox {
 public:
  Inbox() = default;
  ~Inbox() { take(); }
  Inbox(const Inbox&) = delete;  // others put into it
  Inbox& operator=(const Inbox&) = delete;

  void put(Item item) {
    Node* const node = new Node{std::move(item), newest_.load(std::memory_order_relaxed)};
    while (!newest_.compare_exchange_weak(node->older, node, std::memory_order_seq_cst, std::memory_order_relaxed)) {
    }
  }

  /// All there is, in the order in which it was put.
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
