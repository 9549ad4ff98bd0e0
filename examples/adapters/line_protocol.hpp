// The line protocol of `islices conform --command`, for adapters in C++17: JSON lines both ways (docs/protocol.md).
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace line_protocol {
struct Unsupported { std::string reason; };
struct Refusal { std::string kind, message; };

// A JSON value: `text` is a string or a bare word (null, true, 3), `keys` has an object's keys in the order of `items`.
struct Value {
  std::string text;
  std::vector<std::string> keys;
  std::vector<Value> items;
  const Value* find(const std::string& key) const {
    for (size_t k = 0; k < keys.size(); ++k) if (keys[k] == key) return &items[k];
    return nullptr;
  }
  const Value& operator[](const std::string& key) const {
    if (auto found = find(key)) return *found;
    throw Unsupported{"a value without " + key};
  }
  const Value& operator[](size_t k) const { return items.at(k); }
};

inline Value parse(const char*& p) {
  Value v;
  auto skip = [&] { while (*p == ' ' || *p == '\t' || *p == '\r') ++p; };
  skip();
  if (*p == '{' || *p == '[') {
    const char close = *p++ == '{' ? '}' : ']';
    for (skip(); *p && *p != close; skip()) {
      if (close == '}') { v.keys.push_back(parse(p).text); skip(); ++p; }  // after the colon
      v.items.push_back(parse(p));
      skip();
      if (*p == ',') ++p;
    }
    if (*p) ++p;
  } else if (*p == '"') {
    for (++p; *p && *p != '"'; ++p) { if (*p == '\\') ++p; v.text += *p; }
    if (*p) ++p;
  } else {
    while (*p && !std::strchr(",]}: \t\r", *p)) v.text += *p++;
  }
  return v;
}

inline std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (char c : s) { if (c == '"' || c == '\\') out += '\\'; out += c; }
  return out + '"';
}

// Convert between elements and hexadecimal digits of their bytes, in little-endian order.
template <class T> std::vector<T> bits(const std::string& hex) {
  std::vector<T> out(hex.size() / 2 / sizeof(T));
  auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t k = 0; k < out.size() * sizeof(T); ++k)
    reinterpret_cast<unsigned char*>(out.data())[k] = digit(hex[2 * k]) << 4 | digit(hex[2 * k + 1]);
  return out;
}
template <class T> std::string hex(const std::vector<T>& x) {
  std::string out;
  for (size_t k = 0; k < x.size() * sizeof(T); ++k) {
    auto byte = reinterpret_cast<const unsigned char*>(x.data())[k];
    (out += "0123456789abcdef"[byte >> 4]) += "0123456789abcdef"[byte & 15];
  }
  return out;
}
inline double number(const Value& x) {  // {"float": ..} or {"int": ..}
  return x.find("float") ? bits<double>(x["float"].text).at(0) : double(bits<int64_t>(x["int"].text).at(0));
}

using Shape = std::vector<int64_t>;
inline Shape shape_of(const Value& x) {
  Shape out;
  for (auto& n : x.items) out.push_back(n.text == "null" ? -1 : std::stoll(n.text));  // -1: the number of rows is unknown
  return out;
}
inline std::string json(const Shape& shape) {
  std::string out;
  for (auto n : shape) out += (out.empty() ? "" : ",") + (n < 0 ? "null" : std::to_string(n));
  return "[" + out + "]";
}
template <class T> constexpr const char* name_of() {
  return std::is_same_v<T, float> ? "float32" : std::is_same_v<T, double> ? "float64" : std::is_same_v<T, int32_t> ? "int32" : "int64";
}
template <class T> struct Array {
  std::string dtype;
  Shape shape;
  std::vector<T> data;
  Array(std::string dtype, Shape shape, std::vector<T> data) : dtype(dtype), shape(shape), data(data) {}
  explicit Array(const Value& x) : dtype(x["array"].text), shape(shape_of(x["shape"])), data(bits<T>(x["bits"].text)) {
    if (dtype != name_of<T>()) throw Refusal{"TypeError", "got " + dtype + ", accepted is " + name_of<T>()};
  }
  std::string json() const {
    return "{\"array\":" + quoted(dtype) + ",\"shape\":" + line_protocol::json(shape) + ",\"bits\":\"" + hex(data) + "\"}";
  }
};
template <class T> struct Slices {  // a row-sparse array after checks, without padded slots
  std::string dtype, index_dtype;
  Shape row_shape, dense_shape;
  size_t width = 1;
  std::vector<int64_t> indices;
  std::vector<std::vector<T>> rows;
  explicit Slices(const Value& x)
      : dtype(x["slices"]["array"].text), index_dtype(x["indices"]["array"].text), dense_shape(shape_of(x["dense_shape"])) {
    Array<T> values(x["slices"]);
    row_shape.assign(values.shape.begin() + 1, values.shape.end());
    for (auto n : row_shape) width *= n;
    if (index_dtype == "int64") indices = bits<int64_t>(x["indices"]["bits"].text);
    else for (auto i : bits<int32_t>(x["indices"]["bits"].text)) indices.push_back(i);
    std::vector<int64_t> kept;
    for (size_t k = 0; k < indices.size(); ++k) {
      const int64_t i = indices[k], limit = dense_shape.at(0);
      if (x.find("padded") && i == limit) continue;
      if (i < 0 || (limit >= 0 && i >= limit)) throw Refusal{"IndexError", "indices: got " + std::to_string(i)};
      kept.push_back(i);
      rows.emplace_back(values.data.begin() + k * width, values.data.begin() + (k + 1) * width);
    }
    indices = kept;
  }
  std::string json(bool coalesced) const {
    Shape shape{int64_t(rows.size())};
    shape.insert(shape.end(), row_shape.begin(), row_shape.end());
    std::vector<T> data;
    for (auto& row : rows) data.insert(data.end(), row.begin(), row.end());
    const Shape count{int64_t(rows.size())};
    const std::string places = index_dtype == "int64"
        ? Array<int64_t>(index_dtype, count, indices).json()
        : Array<int32_t>(index_dtype, count, std::vector<int32_t>(indices.begin(), indices.end())).json();
    return "{\"slices\":" + Array<T>(dtype, shape, data).json() + ",\"indices\":" + places + ",\"dense_shape\":" +
           line_protocol::json(dense_shape) + (coalesced ? ",\"coalesced\":true}" : "}");
  }
};

// Call f(0.0f) or f(0.0), depending on the dtype of an array.
template <class F> std::string by_dtype(const Value& array, F f) {
  if (array["array"].text == "float32") return f(0.0f);
  if (array["array"].text == "float64") return f(0.0);
  throw Unsupported{array["array"].text};
}

using Operation = std::function<std::string(const Value& args, const Value& kwargs)>;
inline int serve(const std::string& name, const std::string& version, const std::map<std::string, Operation>& operations) {
  for (std::string line; std::getline(std::cin, line);) {
    const char* p = line.c_str();
    const Value message = parse(p);
    std::string out;
    if (message.find("hello")) {
      for (auto& op : operations) out += (out.empty() ? "" : ",") + quoted(op.first);
      out = "{\"hello\":" + quoted(name) + ",\"version\":" + quoted(version) + ",\"protocol\":1,\"ops\":[" + out + "]}";
    } else {
      auto refused = [](const std::string& kind, const std::string& why) {
        return "\"error\":" + quoted(kind) + ",\"message\":" + quoted(why);
      };
      try {
        out = "\"ok\":" + operations.at(message["op"].text)(message["args"], message["kwargs"]);
      } catch (const Unsupported& why) {
        out = "\"unsupported\":" + quoted(why.reason);
      } catch (const Refusal& why) {
        out = refused(why.kind, why.message);
      } catch (const std::bad_alloc&) {
        out = refused("MemoryError", "no memory for the result");
      } catch (const std::length_error&) {
        out = refused("MemoryError", "no memory for the result");
      }
      out = "{\"call\":" + message["call"].text + "," + out + "}";
    }
    std::cout << out << std::endl;  // flush: the suite waits for the line
  }
  return 0;
}
}  // namespace line_protocol
