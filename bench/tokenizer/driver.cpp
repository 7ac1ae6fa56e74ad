// The tokenizer's core timed from C++: the cost of a call without Python, as an engine in C++ would make it.
// Built by bench/tokenizer/native.py. Python hands over a file and a text, and gets numbers back.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <time.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tokenizer.hpp"

namespace {

namespace py = pybind11;

double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class Driver {
 public:
  explicit Driver(const std::string& file) : tokenizer_(file) {}

  std::vector<int32_t> encode(const std::string& text) const {
    std::vector<int32_t> ids;
    tokenizer_.encode_ids(text, true, fasttoken::Tokenizer::scratch(), ids);
    return ids;
  }

  // CPU seconds of one encoding, a value a round of `loops`.
  std::vector<double> alone(const std::string& text, int loops, int rounds) const {
    std::vector<double> taken;
    py::gil_scoped_release free;
    fasttoken::Scratch& s = fasttoken::Tokenizer::scratch();
    for (int round = 0; round < rounds; ++round) {
      double began = now(CLOCK_THREAD_CPUTIME_ID);
      for (int i = 0; i < loops; ++i) {
        s.ids.clear();
        tokenizer_.encode_ids(text, true, s, s.ids);
      }
      taken.push_back((now(CLOCK_THREAD_CPUTIME_ID) - began) / loops);
    }
    return taken;
  }

  // Wall seconds of one encoding while `threads` make `loops` each, a value a round: the rate of all together.
  std::vector<double> together(const std::string& text, int loops, int rounds, int threads) const {
    std::vector<double> taken;
    py::gil_scoped_release free;
    for (int round = 0; round < rounds; ++round) {
      std::atomic<int> ready{0};
      std::atomic<bool> go{false};
      std::vector<std::thread> running;
      for (int t = 0; t < threads; ++t)
        running.emplace_back([&] {
          fasttoken::Scratch& s = fasttoken::Tokenizer::scratch();
          ready.fetch_add(1);
          while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
          for (int i = 0; i < loops; ++i) {
            s.ids.clear();
            tokenizer_.encode_ids(text, true, s, s.ids);
          }
        });
      while (ready.load() < threads) std::this_thread::yield();
      double began = now(CLOCK_MONOTONIC);
      go.store(true, std::memory_order_release);
      for (std::thread& t : running) t.join();
      taken.push_back((now(CLOCK_MONOTONIC) - began) / (static_cast<double>(loops) * threads));
    }
    return taken;
  }

 private:
  fasttoken::Tokenizer tokenizer_;
};

}  // namespace

PYBIND11_MODULE(tokenizer_driver, module) {
  py::class_<Driver>(module, "Driver")
      .def(py::init<const std::string&>(), py::arg("file"))
      .def("encode", &Driver::encode, py::arg("text"))
      .def("alone", &Driver::alone, py::arg("text"), py::arg("loops"), py::arg("rounds"))
      .def("together", &Driver::together, py::arg("text"), py::arg("loops"), py::arg("rounds"), py::arg("threads"));
}
