// Threads that carry out the state machine's instructions: the calling thread, and one per other processor.
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

// Start and end of a step, in nanoseconds of the steady clock.
struct Span {
  int step;
  size_t queue;
  int64_t start;
  int64_t end;
};

// Times of one inference, in nanoseconds of the steady clock.
struct Inference {
  int64_t start = 0;
  int64_t end = 0;
  std::vector<Span> spans;
};

// An event and the machine's answer.
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
  // Starts and pins the threads, and compiles each queue's steps on the queue's thread; throws Error on failure.
  Executor(const plan::Plan& plan, const Options& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Machine& machine() const { return machine_; }
  // Memory of a tensor.
  Memory& memory(int tensor) { return *tensors_[static_cast<size_t>(tensor)]; }
  // Steps with operators that stay on the CPU although an accelerator was requested.
  std::vector<int> Partly() const;
  // Events of the last inference.
  const std::vector<Recorded>& record() const { return record_; }

  // Runs one inference on the contents of the inputs' memory; throws Error if a step fails or takes too long.
  Inference Run();

 private:
  // The next step of a queue's thread; -1 for none.
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

  std::mutex mutex_;  // guards the members below
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
