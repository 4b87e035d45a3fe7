// The sentences of a comparison in Chinese. They come as English text; one without a form here stays as it is.

import { inChinese } from "./words.js";

const KINDS = { unmatched: "未匹配", kind: "类别不同", unreadable: "无法读取", missing: "缺少文件", shape: "形状", hidden: "被掩盖", destination: "写入目标", recomputed: "重计算", covered: "已由其他行比对", rounding: "舍入" };
const WHAT = { call: "调用", argument: "参数", item: "数据", parameter: "参数", output: "输出", result: "结果" };
const SIDES = { target: "目标", golden: "标杆", "golden run": "标杆" };
const PARTS = { maximum: "最大值", minimum: "最小值", mean: "均值", norm: "范数" };

// "X in M" is "M 中的 X"; a call that replaces another names both.
function call(text) {
  return text.replace(/, which replaces (\S+?),?$/, "（对应标杆的 $1）").replace(/^(\S+) in ([^\s（]+)/, "$2 中的 $1");
}

function turned(text) {
  return (text || "").replace(/^: it turns (\S+) into (\S+)$/, "：它把 $1 变为 $2");
}

const FORMS = [
  [/^(.+) received a different (.+), which no recorded call produced$/, (x, slot) => `${call(x)} 收到的 ${slot} 不同：在已记录的调用之前就已不同`],
  [/^(.+) received a different (.+), though what was recorded before it agrees$/, (x, slot) => `${call(x)} 收到的 ${slot} 不同，而此前的记录一致`],
  [/^(.+) was given its operands swapped$/, (x) => `${call(x)} 的两个操作数互换了`],
  [/^(.+) was called with a different argument on ranks? ([\d, -]+): (.+)$/, (x, ranks, rest) => `${call(x)} 在卡 ${ranks} 上的参数不同：${inLanguage(rest)}`],
  [/^(.+) was called with a different argument: (.+)$/, (x, rest) => `${call(x)} 的参数不同：${inLanguage(rest)}`],
  [/^(.+) returns a different (.+) for the same inputs$/, (x, slot) => `${call(x)} 在输入相同时输出了不同的 ${slot}`],
  [/^(.+) returns a different (.+) although its inputs have the same statistics$/, (x, slot) => `${call(x)} 在输入统计量相同时输出了不同的 ${slot}`],
  [/^(.+) returns a different (.+) although its inputs agree except for rounding$/, (x, slot) => `${call(x)} 的输入只有舍入差异，输出的 ${slot} 却不同`],
  [/^(.+) returns a different (.+); its inputs were not compared$/, (x, slot) => `${call(x)} 输出的 ${slot} 不同；其输入未比对`],
  [/^(.+) computes in a different precision: (\S+|\S+ \(\S+\)): (.+)$/, (x, slot, rest) => `${call(x)} 的计算精度不同：${slot} 的${inLanguage(rest)}`],
  [/^(.+) is missing in the target(: it turns .+)?$/, (x, rest) => `目标中缺少 ${call(x)}${turned(rest)}`],
  [/^(.+) exists only in the target(: it turns .+)?$/, (x, rest) => `${call(x)} 只在目标中存在${turned(rest)}`],
  [/^(.+) is replaced by (.+) in the target$/, (x, other) => `${call(x)} 在目标中换成了 ${other}`],
  [/^(.+): the other run makes this call, but elsewhere$/, (x) => `${call(x)} 在此处没有对应的调用；另一次运行在别处有`],
  [/^the gradient of (.+) of (.+) differs, though no backward call that was compared does$/, (slot, x) => `${x} 的 ${slot} 的梯度不同，而比对过的反向调用都一致`],
  [/^(.+) drew different random numbers$/, (x) => `${call(x)} 的随机数不同`],
  [/^(.+) selected different elements; its inputs differ only by rounding$/, (x) => `${call(x)} 的输入只有舍入差异，离散选择却不同`],
  [/^(.+) received a difference from another rank$/, (x) => `${call(x)} 从其他卡收到了差异`],
  [/^(?:weight (.+) of|weight of) (\S+) differs before anything ran$/, (slot, x) => `${x} 的权重${slot ? " " + slot : ""}在运行之前就不同`],
  [/^(?:weight (.+) of|weight of) (\S+) differs at the start of step (\d+), though the step before agrees: look at the optimizer$/, (slot, x, step) => `${x} 的权重${slot ? " " + slot : ""}在第 ${step} 步开始时不同，而前一步一致：请检查优化器`],
  [/^the gradient is cut off at (.+): (\S+|\S+ \(\S+\)): (requires_grad .+)$/, (x, slot, rest) => `梯度在 ${call(x)} 处被截断：${slot} 的 ${inLanguage(rest)}`],
  [/^the gradient is not detached at (.+), but is in the golden run: (\S+|\S+ \(\S+\)): (requires_grad .+)$/, (x, slot, rest) => `梯度在 ${call(x)} 处未被截断，标杆中被截断：${slot} 的 ${inLanguage(rest)}`],
  [/^(.+) is the first call that produced NaN or infinity: (.+)$/, (x, slot) => `${call(x)} 是第一个产生 NaN 或无穷的调用：${slot}`],
  [/^(\d+) calls? ha(?:s|ve) NaN or infinity, and none produced it$/, (n) => `${n} 个调用含 NaN 或无穷，但都不是产生者`],
  [/^(\d+) more calls? ha(?:s|ve) NaN or infinity$/, (n) => `另有 ${n} 个调用含 NaN 或无穷`],
  [/^(\d+) later calls? differs?$/, (n) => `还有 ${n} 个调用不同`],
  [/^(.+) \(relative difference (\S+)\)$/, (rest, n) => `${inLanguage(rest)}（相对差异 ${n}）`],
  [/^the argument is (.+), not (.+)$/, (ours, theirs) => `参数为 ${ours}，标杆为 ${theirs}`],
  [/^the dtype is (.+), not (.+)$/, (ours, theirs) => `数据类型为 ${ours}，标杆为 ${theirs}`],
  [/^requires_grad is (.+), not (.+)$/, (ours, theirs) => `requires_grad 为 ${ours}，标杆为 ${theirs}`],
  [/^([\w.[\]]+|argument [\d.]+) is (.+), not (.+)$/, (name, ours, theirs) => `${name.replace("argument ", "参数 ")} 为 ${ours}，标杆为 ${theirs}`],
  [/^(maximum|minimum|mean|norm) differs$/, (part) => `${PARTS[part]}不同`],
  [/^(\d+) of (\d+) elements differ$/, (n, all) => `${all} 个元素中有 ${n} 个不同`],
  [/^the checksums differ$/, () => "校验值不同"],
  [/^(unmatched|kind|unreadable|missing|shape|hidden|destination|recomputed|covered|rounding): (.+)$/, (kind, rest) => `${KINDS[kind]}：${inLanguage(rest)}`],
  [/^(\[.*\]) and (\[.*\])$/, (ours, theirs) => `目标 ${ours}，标杆 ${theirs}`],
  [/^the (target|golden run) has no such (.+)$/, (side, what) => `${SIDES[side]}中没有这个${WHAT[what] || what}`],
  [/^NaN in the (target|golden run) only$/, (side) => `只有${SIDES[side]}中有 NaN`],
  [/^infinite (maximum|minimum|mean|norm) in the (target|golden run|golden) only$/, (part, side) => `只有${SIDES[side]}的${PARTS[part]}为无穷`],
  [/^NaN on both sides hides the values$/, () => "两侧都有 NaN，无法比对数值"],
  [/^infinities on both sides hide the other values$/, () => "两侧都有无穷，无法比对其他数值"],
  [/^no statistics were recorded$/, () => "没有记录统计量"],
  [/^the other run did not recompute this call$/, () => "另一次运行没有重计算此调用"],
  [/^the call only writes this tensor$/, () => "此调用只写入该张量"],
  [/^Proved: with (.+) replaced by the golden result, the run is the same (bit for bit|within rounding)$/, (x, how) => `已证实：把 ${x} 换成标杆结果后，运行${how === "bit for bit" ? "逐比特" : "在舍入误差内"}一致`],
  [/^Not the cause: with (.+) replaced by the golden result, the run still differs$/, (x) => `不是原因：把 ${x} 换成标杆结果后，运行仍不同`],
  [/^Not proved: with (.+) replaced by the golden result, the run still differs$/, (x) => `未证实：把 ${x} 换成标杆结果后，运行仍不同`],
  [/^grafted on request$/, () => "按要求替换"],
  [/^(.+), golden (\S+) at step (\d+)$/, (losses, n, step) => `${losses}，标杆 ${n}（第 ${step} 步）`],
  [/^has NaN$/, () => "含 NaN"],
  [/^has infinity$/, () => "含无穷"],
  [/^statistics do not see the order of elements: (.+) may differ in it$/, (slots) => `统计量看不出元素的顺序：${slots === "input" ? "输入" : slots} 的顺序可能不同`],
  [/^it reached ranks? (.+) through (\S+)$/, (ranks, x) => `经 ${x} 传到卡 ${ranks}`],
  [/^the golden run passes the result of (\S+); the target passes something else$/, (x) => `标杆传递的是 ${x} 的输出；目标传递的是别的值`],
  [/^the (target|golden run) passes (.+) to (\S+)$/, (side, given, x) => `${SIDES[side]}向 ${x} 传入 ${given}`],
  [/^find where the two runs get this argument from, make it the same and compare again$/, () => "找出两次运行中该参数的来源，改为一致后再比对"],
  [/^compare how the two runs load or initialise their weights and buffers/, () => "检查两次运行如何加载或初始化权重和缓冲区（种子、检查点、数据类型）"],
  [/^compare this code of the two runs:/, () => "比较两次运行的这段代码：可能被修改、走了另一分支，或安装了另一版本"],
  [/^compare what changes weights between the two steps/, () => "比较两步之间改变权重的操作：优化器设置、梯度裁剪、损失缩放、加载的状态"],
  [/^make this the same in both runs and compare again$/, () => "把两次运行的这一处改为一致后再比对"],
  [/^look for detach\(\), torch\.no_grad\(\)/, () => "检查此调用之前的 detach()、torch.no_grad() 和 requires_grad_(False)"],
  [/^look at autocast and at casts/, () => "检查此调用附近的 autocast 和类型转换（to、float、half、bfloat16）"],
  [/^seed both runs in the same way/, () => "用相同方式固定两次运行的种子（seed_all），或关闭 dropout（rm_dropout）"],
  [/^look for hooks on this parameter/, () => "检查该参数上的钩子，以及只在一次运行中使用它的调用"],
  [/^see what each rank has of this call:/, () => "查看各卡在此调用中的数据：msprobe view TARGET GOLDEN，然后按 Enter"],
  [/^collect with summary_mode md5 to see other orders/, () => "用 summary_mode md5 采集可看出顺序不同，或用 --next-config FILE 采集可疑调用的张量"],
  [/^look at the code between the last recorded call and this one/, () => "检查上一个记录的调用与此调用之间的代码；--next-config FILE 可采集张量"],
  [/^run this call alone on the saved inputs:/, () => "用保存的输入单独运行此调用：msprobe run_ut"],
  [/^--next-config FILE writes a config\.json/, () => "--next-config FILE 写出采集可疑调用张量的 config.json"],
  [/^([\w.[\]]+(?: \([\w.]+\))?): (.+)$/, (slot, rest) => inLanguage(rest) === rest ? `${slot}: ${rest}` : `${slot}：${inLanguage(rest)}`],
  [/^((?:step ?\d+|ranks? [\d, –-]+|step\d+\/rank\d*|, )+)(forward|backward|update)?$/, (place, phase) => place.replace(/step (\d+)/, "第 $1 步").replace(/ranks? ([\d, –-]+\d)/, "卡 $1").replaceAll(", ", "，") + ({ forward: "前向", backward: "反向", update: "更新" }[phase] || "")],
];
const known = new Map();

export function inLanguage(text) {
  if (!inChinese() || text.length > 1000) return text;
  if (!known.has(text)) {
    if (known.size > 5000) known.clear();
    let made = text;
    for (const [form, make] of FORMS) {
      const found = form.exec(text);
      if (found) { made = make(...found.slice(1)).replace("） ", "）"); break; }
    }
    known.set(text, made);
  }
  return known.get(text);
}
