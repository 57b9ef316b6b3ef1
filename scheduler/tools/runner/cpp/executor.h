// Threads that carry out what the state machine says: the calling thread, and one for each other processor.
#ifndef NN_STRETCH_RUNNER_EXECUTOR_H_
#define NN_STRETCH_RUNNER_EXECUTOR_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "machine.h"
#include "options.h"
#include "plan_types.h"
#include "session.h"

namespace runner {

// When a step ran, in nanoseconds of the steady clock.
struct Span {
  int step;
  size_t queue;
  int64_t start;
  int64_t end;
};

// What one inference took.
struct Inference {
  int64_t start = 0;
  int64_t end = 0;
  std::vector<Span> spans;
};

// An event and what the machine answered.
struct Recorded {
  enum class Event { kInputReady, kStepDone, kStepFailed };
  Event event;
  int step;
  size_t queue;
  std::string error;
  std::vector<Instruction> answer;
};

class Executor {
 public:
  // Starts the threads, pins each, and compiles each queue's steps on its own thread; throws Error if one cannot be.
  Executor(const plan::Plan& plan, const Options& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Machine& machine() const { return machine_; }
  // Memory of a tensor.
  Memory& memory(int tensor) { return *tensors_[static_cast<size_t>(tensor)]; }
  // Steps of which some operators stay on the CPU though an accelerator was asked for.
  std::vector<int> Partly() const;
  // What happened in the inference that ran last.
  const std::vector<Recorded>& record() const { return record_; }

  // One inference on what is in the memory of the inputs; throws Error if a step fails or takes too long.
  Inference Run();

 private:
  // What a queue's thread is to do next.
  struct Queue {
    std::condition_variable wake;
    int step = -1;
  };

  void Compile(size_t queue);
  void Serve(size_t queue);
  void Work(int step, size_t queue, std::unique_lock<std::mutex>& lock);
  void Report(Recorded event, std::vector<Instruction> answer);
  bool Meet(int step, std::unique_lock<std::mutex>& lock);
  void Stop();

  const plan::Plan& plan_;
  const Options& options_;
  Machine machine_;
  Environment environment_;
  std::vector<std::unique_ptr<Memory>> tensors_;
  std::vector<std::unique_ptr<CompiledStep>> steps_;
  std::vector<int> meeting_sizes_;
  std::mutex compile_mutex_;

  std::mutex mutex_;  // guards all below
  std::vector<std::unique_ptr<Queue>> queues_;
  std::condition_variable met_;
  std::vector<int> met_counts_;
  std::vector<Recorded> record_;
  Inference inference_;
  std::string failure_;
  int failure_code_ = 0;
  size_t compiling_ = 0;
  bool finished_ = false;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point deadline_;

  std::vector<std::thread> threads_;
};

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_EXECUTOR_H_
