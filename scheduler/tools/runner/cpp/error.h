// Errors: one sentence each, with the exit code of the program.
#ifndef NN_STRETCH_RUNNER_ERROR_H_
#define NN_STRETCH_RUNNER_ERROR_H_

#include <stdexcept>
#include <string>

namespace runner {

// Exit codes, the same as those of `stretch`.
enum Exit { kDone = 0, kFailure = 1, kUsage = 2, kMissing = 5 };

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& sentence, int code = kFailure) : std::runtime_error(sentence), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_ERROR_H_
