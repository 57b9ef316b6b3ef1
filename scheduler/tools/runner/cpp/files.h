// Files: read whole, mapped privately, and written completely or not at all.
#ifndef NN_STRETCH_RUNNER_FILES_H_
#define NN_STRETCH_RUNNER_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan_types.h"

namespace runner {

// A file mapped into memory; changes of the memory do not change the file, and only written pages are copied.
class Mapping {
 public:
  // Throws Error if the file cannot be read, or is not the plan's file.
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Writes the patches into the memory; throws Error if one lies outside of it.
  void Apply(const plan::Patch* patches, size_t count);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::string path_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Throws Error unless the plan was written for this file.
void CheckBelongs(const Mapping& file, const std::string& path, const plan::Plan& plan);

// Shape and elements of an array.
struct Array {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

// Reads a .npy file of float32 in C order; throws Error for any other file.
Array ReadNpy(const std::string& path);

// The content of a .npy file, version 1.0.
std::string NpyBytes(const std::vector<int64_t>& shape, const float* data, size_t count);

// Writes a temporary file and renames it to `path` in one step.
void WriteFile(const std::string& path, const std::string& content);

// Creates a folder unless it exists.
void MakeFolder(const std::string& path);

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_FILES_H_
