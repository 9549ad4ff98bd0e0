// tf.unsortedSegmentSum multiplies all rows by a mask for each segment: an infinity makes the others NaN, and it costs n k.
const tf = require("@tensorflow/tfjs-core");
require("@tensorflow/tfjs-backend-cpu");

const sums = tf.unsortedSegmentSum(tf.tensor1d([Infinity, 1, 2]), tf.tensor1d([0, 1, 1], "int32"), 2);
console.log(Array.from(sums.dataSync()));
const [rows, ids] = [tf.ones([2000, 8]), tf.zeros([2000], "int32")];
const elapsed = (k) => { const t = Date.now(); tf.unsortedSegmentSum(rows, ids, k).dataSync(); return Date.now() - t; };
elapsed(200);
console.log("2000 segments take more than 20 times as long as 20:", elapsed(2000) > 20 * elapsed(20));
