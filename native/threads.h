// A small pool that runs numbered tasks; which thread runs which task is never fixed, so a task's
// result must depend on its number alone.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace glimpse {

class ThreadPool {
 public:
  // Threads in all, the caller of `run` included. Throws std::invalid_argument below 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Calls task(i) once for every i in [0, num_tasks) and returns when all are done. Tasks must not
  // throw and must not call `run`, and no two calls may overlap.
  template <class F>
  void run(int num_tasks, F&& task) {
    using Task = std::remove_reference_t<F>;
    run_erased(
        num_tasks, [](void* context, int i) { (*static_cast<Task*>(context))(i); },
        const_cast<void*>(static_cast<const void*>(&task)));
  }

 private:
  struct Workers;
  using Call = void (*)(void* context, int i);

  void run_erased(int num_tasks, Call call, void* context);
  Workers& workers();

  const int num_threads_;
  std::unique_ptr<Workers> workers_;  // made on first use, and again after a fork
};

}  // namespace glimpse
