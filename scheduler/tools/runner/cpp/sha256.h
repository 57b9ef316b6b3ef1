// SHA-256 (FIPS 180-4), by which the runner checks that its plan was written for a file.
#ifndef NN_STRETCH_RUNNER_SHA256_H_
#define NN_STRETCH_RUNNER_SHA256_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace runner {

// The digest of `bytes` bytes at `data`, in hexadecimal digits.
std::string Sha256(const uint8_t* data, size_t bytes);

}  // namespace runner

#endif  // NN_STRETCH_RUNNER_SHA256_H_
