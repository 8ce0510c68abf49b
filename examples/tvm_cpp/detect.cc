// Runs a lib.so made by `bridge run MODEL --to tvm` with TVM's runtime alone: no Python, no compiler.
//
//     detect LIB.so INPUT=FILE...
//
// Every FILE holds the raw numbers of one input (float32 and so on, in the order of the manifest's
// shape). Every output is printed on a line of its own: its shape, then its numbers. The manifest
// beside the library says what the outputs are called and which of them counts the real rows.
#include <tvm/runtime/module.h>
#include <tvm/runtime/ndarray.h>
#include <tvm/runtime/packed_func.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using tvm::runtime::Module;
using tvm::runtime::NDArray;

static void Print(const NDArray& array) {
  size_t count = 1;
  for (int64_t dim : array.Shape()) {
    std::printf("%lld ", static_cast<long long>(dim));
    count *= dim;
  }
  std::printf(":");
  for (size_t i = 0; i < count; ++i) {
    if (array.DataType() == tvm::runtime::DataType::Float(32)) {
      std::printf(" %.9g", static_cast<const float*>(array->data)[i]);
    } else if (array.DataType() == tvm::runtime::DataType::Int(64)) {
      std::printf(" %lld", static_cast<long long>(static_cast<const int64_t*>(array->data)[i]));
    }
  }
  std::printf("\n");
}

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: detect LIB.so INPUT=FILE...\n"), 2;
  // A bare file name would be looked for where the system keeps its libraries.
  Module library = Module::LoadFromFile(std::filesystem::absolute(argv[1]).string());
  Module executor = library.GetFunction("default")(DLDevice{kDLCPU, 0});
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t sign = argument.rfind('=');
    std::ifstream file(argument.substr(sign + 1), std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    NDArray input = executor.GetFunction("get_input")(argument.substr(0, sign));
    input.CopyFromBytes(bytes.data(), bytes.size());
  }
  executor.GetFunction("run")();
  const int outputs = executor.GetFunction("get_num_outputs")();
  for (int i = 0; i < outputs; ++i) Print(executor.GetFunction("get_output")(i));
}
