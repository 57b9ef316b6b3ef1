// Options of the command line.
#ifndef NN_STRETCH_RUNNER_OPTIONS_H_
#define NN_STRETCH_RUNNER_OPTIONS_H_

#include <map>
#include <string>
#include <vector>

#include "plan_types.h"

namespace runner {

struct Options {
  std::string model;                // TFLite file
  std::vector<std::string> inputs;  // .npy files in the order of the plan's inputs; ones if there are none
  std::string out;                  // folder for results; nothing is written if empty
  int repeat = 20;
  int warmup = 3;
  double time_limit = 600;             // maximum time of one inference, s
  std::map<std::string, int> threads;  // by processor; 1 by default
  std::map<std::string, std::vector<int>> cores;
  std::map<std::string, int> accelerators;  // by processor, bits of LiteRT's set; the CPU by default
  std::string dispatch_folder;              // folder of LiteRT's library for an NPU
  bool copies = false;                      // LiteRT allocates buffers, even where it could use ours
  bool together = false;                    // branches wait for each other at their start
  bool verbose = false;
  bool help = false;
};

// Parses the options; throws Error with the exit code for usage errors.
Options ParseOptions(const std::vector<std::string>& arguments, const plan::Plan& plan);

// The text that --help prints.
std::string Usage(const plan::Plan& plan);

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_OPTIONS_H_
