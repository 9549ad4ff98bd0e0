// An adapter in C++: g++ -O2 -std=c++17 -ffp-contract=off adapter.cpp -o adapter; islices conform --command ./adapter
#include "line_protocol.hpp"
#include <cmath>
using namespace line_protocol;

template <class T> void sum_duplicates(Slices<T>& s) {  // SPEC clause 4: ascending rows, summed in order of occurrence
  std::map<int64_t, std::vector<T>> rows;
  for (size_t k = 0; k < s.rows.size(); ++k) {
    auto [place, first] = rows.try_emplace(s.indices[k], s.rows[k]);
    for (size_t j = 0; !first && j < s.width; ++j) place->second[j] += s.rows[k][j];
  }
  s.indices.clear(), s.rows.clear();
  for (auto& [index, row] : rows) s.indices.push_back(index), s.rows.push_back(row);
}

std::string coalesce(const Value& args, const Value&) {
  return by_dtype(args[0]["slices"], [&](auto zero) {
    Slices<decltype(zero)> s(args[0]);
    sum_duplicates(s);
    return s.json(true);
  });
}

std::string to_dense(const Value& args, const Value&) {
  return by_dtype(args[0]["slices"], [&](auto zero) {
    Slices<decltype(zero)> s(args[0]);
    sum_duplicates(s);
    if (s.dense_shape[0] < 0) throw Refusal{"ValueError", "dense_shape: got unknown rows"};
    std::vector<decltype(zero)> dense(s.dense_shape[0] * s.width);
    for (size_t k = 0; k < s.rows.size(); ++k) std::copy(s.rows[k].begin(), s.rows[k].end(), &dense[s.indices[k] * s.width]);
    return Array<decltype(zero)>(s.dtype, s.dense_shape, dense).json();
  });
}

double power(double beta, int t) {  // clause 16: the squares for the binary digits 1 of t, multiplied in pairs
  double factors[32];
  for (int k = 0; k < 32; ++k, beta = beta * beta > 1e-290 ? beta * beta : 0) factors[k] = t >> k & 1 ? beta : 1;
  for (int half = 16; half; half /= 2) for (int k = 0; k < half; ++k) factors[k] *= factors[k + half];
  return factors[0];
}

std::string optimizer_steps(const Value& args, const Value& kwargs) {  // clause 16: only sgd and adam, with rows, steps and state
  const std::string name = args[0].text;
  std::map<std::string, double> hyper{{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}};
  for (size_t k = 0; k < args[1]["dict"].keys.size(); ++k) hyper[args[1]["dict"].keys[k]] = number(args[1]["dict"][k]);
  for (auto& key : kwargs.keys) if (key != "rows" && key != "steps" && key != "state") throw Unsupported{key};
  if ((name != "sgd" && name != "adam") || hyper.size() != 4 || !hyper.count("lr")) throw Unsupported{"other optimizers and options"};
  const bool adam = name == "adam";
  const std::string rows = kwargs.find("rows") ? kwargs["rows"].text : "touched";
  auto share = [&](const char* key) { return hyper[key] >= 0 && hyper[key] < 1; };
  if (!(hyper["lr"] >= 0) || !share("beta1") || !share("beta2") || (rows != "all" && rows != "touched"))
    throw Refusal{"ValueError", "lr, beta1, beta2 or rows out of range"};
  return by_dtype(args[2], [&](auto zero) {
    using T = decltype(zero);
    Array<T> w(args[2]), m(w.dtype, w.shape, std::vector<T>(w.data.size())), v = m;
    Array<int32_t> step("int32", {1}, {0});
    if (auto state = kwargs.find("state")) {
      if (!state->find("dict")) throw Unsupported{"a state that is no dict"};
      const Value& s = (*state)["dict"];
      if (s.keys.size() != (adam ? 3 : 1) || !s.find("step")) throw Refusal{"ValueError", "a state of other arrays"};
      step = Array<int32_t>(s["step"]);
      if (adam) m = Array<T>(s["m"]), v = Array<T>(s["v"]);
    }
    if (m.shape != w.shape || v.shape != w.shape || step.shape != Shape{1}) throw Refusal{"ValueError", "shapes that differ"};
    const int64_t done = step.data[0], steps = done + (kwargs.find("steps") ? int(number(kwargs["steps"])) : int(args[3].items.size()));
    if (steps > INT32_MAX) throw Refusal{"ValueError", "step: it would leave int32"};
    for (int64_t t = done + 1; t <= steps; ++t) {
      Slices<T> grad(args[3][(t - done - 1) % args[3].items.size()]);
      if (grad.dense_shape != w.shape) throw Refusal{"ValueError", "shapes that differ"};
      if (rows == "all") for (int64_t r = 0; r < w.shape[0]; ++r) grad.indices.push_back(r), grad.rows.emplace_back(grad.width);
      sum_duplicates(grad);
      const T rate = adam ? hyper["lr"] / (1 - power(hyper["beta1"], t)) : hyper["lr"], eps = hyper["eps"];
      const T b1 = 1 - hyper["beta1"], b2 = 1 - hyper["beta2"], root = std::sqrt(1 - power(hyper["beta2"], t));
      for (size_t k = 0; k < grad.rows.size(); ++k)
        for (size_t j = 0; j < grad.width; ++j) {
          const T g = grad.rows[k][j];
          const size_t at = grad.indices[k] * grad.width + j;
          if (!adam) { w.data[at] = w.data[at] - rate * g; continue; }
          m.data[at] = m.data[at] + b1 * (g - m.data[at]);
          v.data[at] = v.data[at] + b2 * (g * g - v.data[at]);
          w.data[at] = w.data[at] - rate * (m.data[at] / (std::sqrt(v.data[at]) / root + eps));
        }
    }
    step.data[0] = steps;
    const std::string state = adam ? ",\"m\":" + m.json() + ",\"v\":" + v.json() : "";
    return "{\"dict\":{\"table\":" + w.json() + ",\"step\":" + step.json() + state + "}}";
  });
}

std::string formula_step(const Value& args, const Value&) {  // called by `islices judge`: torch.Adam without amsgrad
  if (args[0].text != "torch.Adam") throw Unsupported{args[0].text};
  const Value &h = args[2]["dict"], &state = args[5]["dict"];
  if (h["amsgrad"].text == "true") throw Unsupported{"amsgrad"};
  const double t = number(args[1]), beta1 = number(h["beta1"]), beta2 = number(h["beta2"]);
  const float b1 = 1 - beta1, b2 = 1 - beta2, eps = number(h["eps"]), decay = number(h["weight_decay"]);
  const float rate = number(h["lr"]) / (1 - std::pow(beta1, t)), root = std::sqrt(1 - std::pow(beta2, t));
  Array<float> w(args[3]), grad(args[4]), m(state["m"]), v(state["v"]);
  for (size_t k = 0; k < w.data.size(); ++k) {
    const float g = grad.data[k] + decay * w.data[k];
    m.data[k] += b1 * (g - m.data[k]);
    v.data[k] += b2 * (g * g - v.data[k]);
    w.data[k] -= rate * m.data[k] / (std::sqrt(v.data[k]) / root + eps);
  }
  return "{\"dict\":{\"weights\":" + w.json() + ",\"m\":" + m.json() + ",\"v\":" + v.json() + "}}";
}

int main() {
  return serve("adapter.cpp", __VERSION__,
               {{"coalesce", coalesce}, {"to_dense", to_dense}, {"optimizer_steps", optimizer_steps}, {"formula_step", formula_step}});
}
