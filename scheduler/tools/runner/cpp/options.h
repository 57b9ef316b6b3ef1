// What the command line asks for.
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
  std::string out;                  // folder for what is written; nothing is if empty
  int repeat = 20;
  int warmup = 3;
  double time_limit = 600;             // seconds for one inference
  std::map<std::string, int> threads;  // by processor; 1 where nothing is said
  std::map<std::string, std::vector<int>> cores;
  std::map<std::string, int> accelerators;  // bits of LiteRT's set; the CPU where nothing is said
  std::string dispatch_folder;              // of LiteRT's library for an NPU
  bool copies = false;                      // buffers of LiteRT's own, though it could use ours
  bool together = false;                    // branches wait for each other at their start
  bool verbose = false;
  bool help = false;
};

// Throws Error with the exit code of usage.
Options ParseOptions(const std::vector<std::string>& arguments, const plan::Plan& plan);

// What --help prints.
std::string Usage(const plan::Plan& plan);

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_OPTIONS_H_
