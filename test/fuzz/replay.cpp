#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

// libFuzzer's entry, with the name it prescribes.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);  // NOLINT

/// Runs each file of the given folder through the target. An empty folder is a failure: nothing was
/// tested.
int main(int argc, char** argv) {
  std::span<char*> const args(argv, static_cast<std::size_t>(argc));
  if (args.size() != 2) return 2;
  int files = 0;
  for (auto const& entry : std::filesystem::directory_iterator(args[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string const bytes{std::istreambuf_iterator<char>(file), {}};
    // SAFETY: libFuzzer's interface takes text as unsigned bytes.
    LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size());
    ++files;
  }
  std::printf("%d inputs\n", files);
  return files > 0 ? 0 : 1;
}
