// Files: read whole, mapped privately, and written so that none is ever half there.
#ifndef NN_STRETCH_RUNNER_FILES_H_
#define NN_STRETCH_RUNNER_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan_types.h"

namespace runner {

// A file in memory that may be changed without changing the file: only pages that are written become copies.
class Mapping {
 public:
  // Throws Error if the file cannot be read, or is not the one of the plan.
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Puts numbers into the memory; throws Error where one would lie outside of it.
  void Apply(const plan::Patch* patches, size_t count);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::string path_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Throws Error unless the file is the one that the plan was written for.
void CheckBelongs(const Mapping& file, const std::string& path, const plan::Plan& plan);

// Shape and elements of an array.
struct Array {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

// Reads a .npy file of float32 in C order; throws Error otherwise.
Array ReadNpy(const std::string& path);

// The content of a .npy file, versions 1.0.
std::string NpyBytes(const std::vector<int64_t>& shape, const float* data, size_t count);

// Writes a file beside its place and lets it take that place in one step.
void WriteFile(const std::string& path, const std::string& content);

// Makes a folder if there is none.
void MakeFolder(const std::string& path);

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_FILES_H_
