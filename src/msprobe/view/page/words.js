// The interface in English and Chinese. sentences.js has the sentences of the comparison itself.

const WORDS = {
  against: ["against", "对比"], origin: ["Origin", "起点"], colon: [": ", "："], same: ["Same: every compared row agrees within the rounding of its dtype.", "一致：所有比对的行都在其数据类型的舍入误差之内。"],
  differs: ["Differs, but no single origin can be named.", "存在差异，但无法确定唯一的起点。"], not_compared: ["Some rows could not be compared; all others agree.", "有内容无法比对；能比对的部分一致。"],
  clean: ["Nothing wrong was found.", "没有发现问题。"], found: ["Found", "发现"],
  go: ["Go there", "前往"], fold: ["Less", "收起"], unfold: ["More", "展开"], notes: ["Notes", "说明"], alarms: ["Alarms", "告警"], alarm: ["alarm", "告警"],
  call: ["call", "调用"], seen_in: ["seen in", "见于"], module: ["module", "模块"], where: ["where", "位置"], source: ["source", "源码"], inside: ["inside", "库内"], evidence: ["evidence", "证据"], then: ["then", "之后"], next: ["next", "下一步"], records: ["records", "记录数"], run: ["run", "运行"], steps: ["steps", "步"], ranks: ["ranks", "卡"], target: ["target", "目标"], golden: ["golden", "标杆"],
  absent: ["not given", "未给出"], unread: ["Only the recorded line is shown.", "只显示记录的行。"],
  "tab.rows": ["Rows", "数据行"], "tab.tensor": ["Tensor", "张量"], "tab.trends": ["Trends", "趋势"], "tab.ranks": ["Ranks", "各卡"], "tab.match": ["Match by hand", "手动匹配"], "tab.collect": ["Collect next", "继续采集"],
  no_font: ["This computer has no Chinese font. Install one (on Debian: fonts-noto-cjk), or press l for English.", "This computer has no Chinese font. Install one (on Debian: fonts-noto-cjk), or press l for English."],
  theme: ["Theme", "主题"], language: ["ZH/EN", "ZH/EN"], help: ["Keys", "快捷键"], link: ["Copy link", "复制链接"], copied: ["Copied.", "已复制。"], not_copied: ["The browser does not allow copying; the address bar has the link.", "浏览器不允许复制；链接在地址栏中。"],
  modules: ["Modules", "模块"], map: ["The model in execution order: the origin is the tall red cell; what came before it is calm, what came after it fades", "按执行顺序的模型：高的红格为起点；此前平静，此后渐淡"], forward: ["forward", "前向"], backward: ["backward", "反向"], origin_mark: ["origin", "起点"], model: ["model", "模型"], more_modules: ["more: search for a name", "更多：请搜索名称"],
  search: ["search names, reasons, source files; * and ? are wildcards", "搜索名称、原因、源文件；* 和 ? 为通配符"], no_more: ["No other call in this direction introduced a difference.", "这个方向上没有其他引入差异的调用。"], introduced_only: ["introduced only", "仅引入差异的行"], all_units: ["all steps and ranks", "全部步和卡"], of: ["of", "/"], rows: ["rows", "行"], whole: ["Show all", "显示全部"], zoomed: ["zoomed", "已缩放"],
  none_found: ["No row matches", "没有匹配的行："], none_left: ["The filters leave no row.", "筛选后没有剩下的行。"], axis_order: ["execution order", "执行顺序"],
  "proof.grafted": ["grafted: given the golden result", "已替换为标杆结果"], "proof.reason": ["why", "原因"], "proof.fired": ["times / values changed", "次数 / 改变的值"], "proof.left": ["rows that differ", "有差异的行"], "proof.share": ["share of the difference", "占差异的比例"], share_of: ["Share of the difference of the loss, or of the number asked for:", "占损失（或所指定数值）差异的比例："], loss: ["loss", "损失"], printed: ["number", "数值"], now: ["now", "现在"],
  both_runs: ["both runs", "两次运行"], "code.made": ["module made at", "模块创建于"], made: ["made at", "创建于"], "code.model": ["model made at", "模型创建于"], model_made: ["model made at", "模型创建于"], called: ["called at", "调用于"], called_golden: ["called at (golden)", "调用于（标杆）"], "code.own": ["your code", "你的代码"], "code.library": ["library", "库"], runs: ["Runs", "运行"],
  "run.command": ["command", "命令"], "run.host": ["host", "主机"], "run.device": ["device", "设备"], "run.versions": ["versions", "版本"], "run.seeds": ["seeds", "种子"], "run.commit": ["commit", "提交"], "run.time": ["time", "时间"],
  "means.order": ["depends on the order of the elements; maximum, minimum, mean and norm do not", "取决于元素的顺序；最大值、最小值、均值和范数与顺序无关"], "means.origin": ["where the difference started", "差异的起点"], "means.introduced": ["its inputs agree, its results do not", "输入一致，结果不一致"], "means.propagated": ["the difference came in with its inputs", "差异随输入而来"], "means.differs": ["differs; where from is not known", "有差异，来源未知"], "means.not_compared": ["only one run has it, or its values hide", "只在一次运行中存在，或数值不可比"], "means.pass": ["agrees within the rounding of its dtype", "在其数据类型的舍入误差之内一致"],
  "means.dump.origin": ["the first call that produced NaN or infinity", "第一个产生 NaN 或无穷的调用"], "means.dump.introduced": ["NaN or infinity from finite inputs", "由有限输入产生 NaN 或无穷"], "means.dump.propagated": ["NaN or infinity came in with its inputs", "NaN 或无穷随输入而来"], "means.dump.pass": ["finite numbers", "有限数值"],
  "means.check.introduced": ["the API fails", "API 未通过"], "means.check.not_compared": ["not checked", "未检查"], "means.check.pass": ["within the limits of the API", "在该 API 的限度之内"],
  verdict: ["state", "状态"], unit: ["step/rank", "步/卡"], name: ["name", "名称"], difference: ["difference", "差异"], reason: ["why", "原因"], plot: ["Difference along execution order, log scale. Drag to zoom.", "沿执行顺序的差异（对数）。拖动可缩放。"], plot_norm: ["Norm along execution order, log scale. Drag to zoom.", "沿执行顺序的范数（对数）。拖动可缩放。"], lanes: ["One lane for each rank, on the axis of the plot: steps follow each other. Click to see one step of one rank.", "每卡一条，与图同轴，各步依次排列。点击查看某卡的某一步。"], faint: ["faint points pass: they are within their limits", "浅色点：通过，无论高低"],
  pass: ["pass", "通过"], warning: ["warning", "警告"], error: ["error", "错误"], introduced: ["introduced", "引入"], propagated: ["propagated", "传播"],
  "v.not_compared": ["not compared", "未比对"], "v.differs": ["differs", "有差异"], finite: ["finite", "有限"], not_finite: ["NaN or infinity", "NaN 或无穷"],
  choose: ["Choose a row.", "请选择一行。"], statistics: ["Statistics", "统计量"], arguments: ["Arguments and results", "参数与结果"], matching: ["Match", "匹配"], confidence: ["confidence", "置信度"], came: ["Came from", "来自"], went: ["Went to", "去向"], trace: ["Trace back until it agrees", "回溯到一致处"], agrees: ["The inputs agree: the difference started here.", "其输入一致：差异从这里开始。"], given: ["The call has a different argument: the difference started here.", "该调用的参数不同：差异从这里开始。"], unknown: ["No recorded call produced this input.", "没有记录到产生该输入的调用。"], long: ["The trace is longer than shown here.", "回溯路径过长，未全部显示。"], stack: ["Stack", "调用栈"], frames: ["frames of libraries", "个库内栈帧"], measured: ["Measured", "度量"], relative: ["relative difference", "相对差异"], tolerance: ["tolerance", "容差"], unfolded: ["stands for", "代表"], follows: ["follows from", "源自"], no_details: ["An exported file of this size has the details of the first calls that differ. `msprobe view` has them all.", "此规模的导出文件只含前面有差异的调用的详情；msprobe view 中有全部详情。"],
  open_tensor: ["Tensor", "张量"], collect: ["Collect next", "加入采集"], collected: ["Chosen", "已选"], no_tensor: ["Choose a row whose tensor was saved (task tensor).", "请选择保存了张量的行（task 为 tensor）。"], tensor_file: ["Tensors are not in an exported file: use `msprobe view`.", "导出文件不含张量：请使用 msprobe view。"], shape: ["shape", "形状"], rows_axis: ["rows", "行"], columns_axis: ["columns", "列"], axis: ["axis", "轴"], index: ["index", "下标"], histogram: ["Values, both sides (log count)", "两侧数值分布（计数取对数）"], histogram_difference: ["|difference| by power of ten (log count)", "|差异| 的数量级分布（计数取对数）"], worst: ["Worst elements", "差异最大的元素"], read: ["read", "已读取"], every: ["only some elements of this slice were read: every", "该切片只读取了部分元素：每隔"], all_zero: ["0 everywhere", "处处为 0"], infinite_cells: ["infinite cells:", "无穷单元格："], nan_cells: ["NaN cells:", "NaN 单元格："], reset: ["Reset zoom", "恢复"], zero: ["0", "0"], equal: ["Both sides are the same, element by element.", "两侧逐元素相同。"],
  match_target: ["Only in the target", "仅在目标中"], match_golden: ["Only in the golden run", "仅在标杆中"], do_match: ["Match these two", "匹配这两个"], save: ["Save mapping file", "保存映射文件"], matched: ["Matched by hand", "手动匹配"], remove: ["Remove", "移除"], judged: ["Judged again.", "已重新判定。"], none_unmatched: ["Every call has a counterpart.", "每个调用都有对应。"], match_how: ["Choose one call on each side. msprobe then compares them as a pair and judges everything again.", "两侧各选一个调用，msprobe 将其作为一对重新比对并判定。"], match_file: ["Matching needs a server: use `msprobe view`.", "匹配需要服务：请使用 msprobe view。"], match_two: ["Give two dumps to match calls.", "匹配需要两份数据。"], saved: ["Saved:", "已保存："], filter: ["filter", "筛选"],
  statistic: ["statistic", "统计量"], rank: ["rank", "卡"], heat_of: ["Largest difference by module; columns are steps and ranks", "各模块的最大差异；列为步和卡"], heat_norm: ["Norm of the output by module; columns are steps and ranks", "各模块输出的范数；列为步和卡"], heat_watched: ["Targets by steps", "监测对象 × 步"], heat_modules: ["Modules by steps", "模块 × 步"], curve: ["Curve", "曲线"], click_heat: ["Click a cell for its curve.", "点击单元格查看曲线。"], step: ["step", "步"], norm: ["norm", "范数"], log_scale: ["log scale", "对数"], root_scale: ["scale of the fourth root", "四次方根刻度"], both: ["both", "两侧"], no_trends: ["One step on one rank has no trend.", "单步单卡没有趋势。"],
  kind: ["kind", "类别"], all_kinds: ["all", "全部"], target_axis: ["target", "监测对象"],
  scales: ["Block scales in", "分块缩放因子："], no_format: ["no format", "未选格式"], scales_along: ["blocks along", "分块方向"], scale_of: ["scale", "缩放因子"], block: ["block", "块"], largest: ["largest |x|", "最大 |x|"], zero_block: ["all zero", "全为零"], blank_zero: ["blank: all zero", "空白：全为零"], thinned: ["one cell stands for the largest of so many blocks, each way:", "每格为若干块中的最大者，每方向："], left_out: ["NaN and infinity, left out:", "未计入的 NaN 和无穷："], side: ["side", "侧"],
  odd: ["odd rank", "异常卡"], ranks: ["ranks", "各卡"], collective: ["collective", "集合通信"], one_rank: ["This dump has one rank.", "此数据只有一张卡。"], collectives: ["Each column is a rank, from top to bottom in execution order; lines join the same collective. Click a line to see its rows.", "每列为一张卡，自上而下为执行顺序；连线表示同一集合通信。点击连线查看数据行。"], disagree: ["ranks disagree", "各卡不一致"],
  nothing_chosen: ["Choose rows with x, or in a row's details.", "用 x 键或在行详情中选择。"], config: ["config.json for the next run", "下一次运行的 config.json"], copy_text: ["Copy", "复制"], download: ["Download", "下载"], clear: ["Clear", "清空"],
  grew: ["The run has grown: updated.", "运行有新数据：已更新。"], living: ["live", "实时"], lost: ["The server has stopped; loaded data stays visible.", "服务已结束；已加载的内容仍可用。"], loading: ["Loading…", "加载中…"], failed: ["The page could not be loaded:", "页面无法加载："],
  "k.enter": ["go to the origin", "前往起点"], "k.n": ["next introduced row", "下一个引入差异的行"], "k.p": ["previous introduced row", "上一个引入差异的行"], "k.slash": ["search", "搜索"], "k.arrows": ["next and previous row; in the tree open and close", "上下移动；在树中展开和折叠"], "k.x": ["choose the row for the next collection", "选中该行以便继续采集"], "k.b": ["trace back until it agrees", "回溯到一致处"], "k.o": ["tensor of the row", "该行的张量"], "k.digits": ["switch tabs", "切换标签"], "k.c": ["copy a link to this view", "复制当前视图的链接"], "k.d": ["light or dark", "浅色或深色"], "k.l": ["English or Chinese", "中英文切换"], "k.escape": ["undo zoom, module and search", "取消缩放、模块和搜索"], "k.m": ["module tree", "模块树"],
  resize: ["Width of the panel", "面板宽度"], resize_column: ["Width of the column", "列宽"], close: ["Close", "关闭"], pick: ["mode", "模式"],
};

let place = (navigator.language || "").startsWith("zh") ? 1 : 0;
try { place = { en: 0, zh: 1 }[localStorage.getItem("msprobe.language")] ?? place; } catch { /* a file without storage */ }

export function inChinese() {
  return place === 1;
}

// A fact of a run without a word of its own has the name that run.json gives it.
export function t(key) {
  return WORDS[key] ? WORDS[key][place] : key.replace(/^run\./, "");
}

// Whether this machine has Chinese letters: two that it lacks look the same.
export function hasChinese() {
  const pen = document.createElement("canvas").getContext("2d"), { width, height } = pen.canvas;
  const [one, other] = ["\u6e90", "\u7801"].map((letter) => {
    pen.clearRect(0, 0, width, height);
    pen.font = "24px system-ui, sans-serif";
    pen.fillText(letter, 4, 40);
    return pen.canvas.toDataURL();
  });
  return one !== other;
}

export function verdictWord(look, kind) {
  if (look === "origin") return t("origin_mark");
  if (kind === "dump") return look === "pass" ? t("finite") : look === "introduced" || look === "propagated" ? t(look) : t("not_finite");
  if (kind === "check" && look !== "pass" && look !== "not_compared") return t("error");
  return look === "not_compared" || look === "differs" ? t("v." + look) : t(look);
}

export function switchLanguage() {
  place = 1 - place;
  try { localStorage.setItem("msprobe.language", ["en", "zh"][place]); } catch { /* kept for this page only */ }
  document.documentElement.lang = ["en", "zh"][place];
}

document.documentElement.lang = ["en", "zh"][place];
